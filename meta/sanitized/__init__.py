"""Generated code under AddressSanitizer and UndefinedBehaviorSanitizer."""
