"""What torch adds to the language: operators, modes, transforms, autograd, subclasses."""
