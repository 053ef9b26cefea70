"""As much of the router of miles's image as a probe sees: a library that knows the field."""
