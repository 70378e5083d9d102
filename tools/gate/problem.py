"""The one error of ``train-gate``."""


class GateTrainingError(Exception):
    """What is wrong, where, and the cure."""
