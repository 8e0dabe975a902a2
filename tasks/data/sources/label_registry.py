"""Which form the labels of a target have."""

from tasks.configuration.run import DataConfig
from tasks.data.sources.label_form import LabelForm
from tasks.data.sources.one_label import OneLabel
from tasks.data.sources.several_labels import LabelColumns, LabelList


def form_of(config: DataConfig) -> LabelForm:
    """How the rows of these data have their labels."""
    if config.kind != "multilabel":
        return OneLabel()
    return LabelList() if isinstance(config.label, str) else LabelColumns()
