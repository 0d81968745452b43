"""The methods of arbor, in the base classes of `Arbor`."""
