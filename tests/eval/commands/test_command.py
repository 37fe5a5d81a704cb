import pytest

from eval.command import command
from trl_prorl.errors import InputError, PushError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (InputError("--k 9: too\n  large"), 2, "error: --k 9: too large\n"),
        (PushError("the Hub answers 500"), 1, "error: the Hub answers 500\n"),
    ],
)
def test_what_goes_wrong_is_one_line_and_a_code(capsys, error, code, said):
    @command
    def main(argv=None):
        if error is not None:
            raise error

    assert main([]) == code
    assert capsys.readouterr().err == said


def test_a_mistake_of_ours_is_no_bad_input():
    @command
    def main(argv=None):
        raise ValueError("ours")

    with pytest.raises(ValueError, match="ours"):
        main()
