"""Where answers come from: one small interface, and a module for each kind of provider."""
