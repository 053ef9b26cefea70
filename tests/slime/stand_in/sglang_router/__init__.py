"""As much of the router of slime's image as a probe sees: a library that knows the field."""
