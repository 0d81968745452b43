"""The methods of arbor, in classes that `Arbor` is made of."""
