"""What processes restore that others have stored, while much changes between them."""
