"""The explorer: a page on which anyone can meet a trained model. Needs `protoflows[app]`."""
