"""The activations that come with the program."""
