"""The error that says that training itself went wrong, and neither the machine nor a file did."""


class DivergedError(ArithmeticError):
    """The loss or the gradient is no number that training can go on from."""
