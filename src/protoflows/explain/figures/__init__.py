"""Functions that draw what the explanations found and return a `matplotlib.figure.Figure`."""
