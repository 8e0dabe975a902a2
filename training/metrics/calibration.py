"""What is made of a checkpoint's predictions beside its metrics: temperature, reliability, thresholds. JSON-able.

Fitted on the validation split, and measured on the test split, which it was not fitted to. Where there is nothing to
fit, `temperature` is None and `reason` has the cause; else the fields are:

    temperature, is_bounded     probabilities are softmax(logits / temperature), or sigmoid where there is one logit
    fitted_on                   split, num_samples, num_rows: the first rows of the split, at most `most_rows`
    loss                        mean cross entropy on these, before and after
    measured_on                 split, num_samples
    calibration_error           expected calibration error on these, before and after
    bins                        the diagram behind it, before and after: from, to, num_samples, claimed, came_true
    thresholds                  None where the kind of target has none; of calibrated probabilities, on the rows it was
                                fitted on: `listed`, and `best`, the one with the highest F1, with its scores on the
                                test split as `measured`

Invariant: a function of the two splits' predictions alone, so the same on any number of ranks and after a kill.
"""

from typing import Any

import torch
from torch import Tensor

from training.metrics.reliability import calibration_error, claims, fill_bins
from training.metrics.temperature import fit_temperature, mean_loss
from training.targets.kind import TargetKind

CALIBRATION_FORMAT = 1
# More would move the temperature by less than can be seen, and cost another pass over a large split.
MOST_ROWS = 100_000
MOST_LOGITS = 1 << 24
Predictions = tuple[Tensor, Tensor]


def most_rows(kind: TargetKind) -> int:
    """How many rows of the validation split are predicted for it."""
    return max(1, min(MOST_ROWS, MOST_LOGITS // len(kind.classes)))


def calibrate(
    fitted_on: Predictions | None, measured_on: Predictions, kind: TargetKind, num_rows: int
) -> dict[str, Any]:
    """`fitted_on` are logits [N, outputs] and labels [N] of the validation split's first rows, of `num_rows` in all.

    None if it has no row. `measured_on` are those of the test split.
    """
    reason = _find_reason(fitted_on, measured_on)
    if fitted_on is None or reason is not None:
        return {"format": CALIBRATION_FORMAT, "temperature": None, "reason": reason}
    options, right = kind.decisions(*fitted_on)
    temperature = fit_temperature(options, right)
    before, after = (claims(*measured_on, divided_by, kind) for divided_by in (1.0, temperature.value))
    bins = {"before": fill_bins(*before), "after": fill_bins(*after)}
    return {
        "format": CALIBRATION_FORMAT,
        "temperature": temperature.value,
        "is_bounded": temperature.is_bounded,
        "reason": None,
        "fitted_on": {"split": "validation", "num_samples": len(fitted_on[1]), "num_rows": num_rows},
        "loss": {"before": mean_loss(options, right, 1.0), "after": mean_loss(options, right, temperature.value)},
        "measured_on": {"split": "test", "num_samples": len(measured_on[1])},
        "calibration_error": {when: calibration_error(found) for when, found in bins.items()},
        "bins": bins,
        "thresholds": kind.thresholds(claims(*fitted_on, temperature.value, kind), after),
    }


def _find_reason(fitted_on: Predictions | None, measured_on: Predictions) -> str | None:
    """Why there is nothing to fit or to measure, or None."""
    if fitted_on is None or not len(fitted_on[1]):
        return "the validation split has no rows"
    if not len(measured_on[1]):
        return "the test split has no rows"
    if not all(bool(torch.isfinite(logits).all()) for logits, _ in (fitted_on, measured_on)):
        return "for at least one sample the model's output is not a finite number"
    if bool((fitted_on[1] == fitted_on[1][0]).all()):
        same = "label" if fitted_on[1].ndim == 1 else "labels"
        return f"all rows of the validation split that were looked at have the same {same}"
    return None
