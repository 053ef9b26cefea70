"""SGLang behind the Engine protocol: requests, retries, sticky routing, and answers taken exactly."""
