"""The `exact_match` metric: `evaluate.load("<path>/eval/metrics/exact_match")`, offline.

Arguments and result as in the Hub's metric of that name, which needs the network. `evaluate` copies this single file
elsewhere and reads its import lines, so it stands alone: one import a line, nothing of ours.
"""

import re
import string

import datasets
import evaluate


_DESCRIPTION = """
Exact match: the share of predictions that equal their reference, character by character, after what is to be ignored
was removed from both.
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (`list[str]`): texts to judge.
    references (`list[str]`): what each should be.
    regexes_to_ignore (`list[str]`, *optional*): matches are removed first, one pattern after the other.
    ignore_case (`bool`, *optional*, defaults to `False`): compare in lower case.
    ignore_punctuation (`bool`, *optional*, defaults to `False`): remove ASCII punctuation (`string.punctuation`).
    ignore_numbers (`bool`, *optional*, defaults to `False`): remove ASCII digits.

Returns:
    `dict[str, float]`: `{"exact_match": share, in [0, 1]}`.

Raises:
    ValueError: if there is nothing to judge, or a pattern is no regular expression.

Example:
    >>> metric = evaluate.load("eval/metrics/exact_match")
    >>> metric.compute(predictions=["42", "7."], references=["42", "7"])
    {'exact_match': 0.5}
    >>> metric.compute(predictions=["42", "7."], references=["42", "7"], ignore_punctuation=True)
    {'exact_match': 1.0}
"""


def _compile(pattern):
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"regexes_to_ignore: '{pattern}' is no regular expression ({error}).") from error


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class ExactMatch(evaluate.Metric):
    """Share of predictions that equal their reference."""

    def _info(self):
        texts = {"predictions": datasets.Value("string"), "references": datasets.Value("string")}
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation="",
            inputs_description=_KWARGS_DESCRIPTION,
            features=datasets.Features(texts),
        )

    def _compute(
        self,
        predictions,
        references,
        regexes_to_ignore=None,
        ignore_case=False,
        ignore_punctuation=False,
        ignore_numbers=False,
    ):
        if not predictions:
            raise ValueError("There is nothing to judge: predictions is empty.")
        patterns = [_compile(pattern) for pattern in regexes_to_ignore or []]
        unwanted = (string.punctuation if ignore_punctuation else "") + (string.digits if ignore_numbers else "")
        removal = str.maketrans("", "", unwanted)

        def kept(text):
            for pattern in patterns:
                text = pattern.sub("", text)
            return (text.lower() if ignore_case else text).translate(removal)

        matches = [kept(ours) == kept(theirs) for ours, theirs in zip(predictions, references, strict=True)]
        return {"exact_match": sum(matches) / len(matches)}
