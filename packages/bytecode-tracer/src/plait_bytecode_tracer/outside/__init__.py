"""What the caller made, and a call may use up, hold or see alive."""
