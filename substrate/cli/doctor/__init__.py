"""The checks of `substrate doctor`."""
