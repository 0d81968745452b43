"""The methods and resources of arbor, in classes that `Arbor` is made of."""
