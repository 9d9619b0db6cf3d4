"""The sections of a report, one per file: each a function from `Material` to `Section`."""
