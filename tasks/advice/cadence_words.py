"""Format of rates, short times, shares and prices, on the advice's page and in the terminal alike.

Invariant: pure, and never more digits than the figures are worth.
"""

from tasks.text import duration

DAY_SECONDS = 86_400.0
YEAR_DAYS = 365.25


def brief(seconds: float) -> str:
    """A duration that may be short: '0.12 ms', '43 ms', '2.5 s', '4 min 12 s'."""
    if seconds >= 0.9995 or seconds == 0:
        return duration(seconds)
    milliseconds = 1000 * seconds
    return f"{milliseconds:.0f} ms" if milliseconds >= 9.95 else f"{milliseconds:.2g} ms"


def in_seconds(seconds: float) -> str:
    """In the unit of the configuration: '81 s', '2.5 s', '43 ms'."""
    return f"{seconds:,.0f} s" if seconds >= 9.95 else brief(seconds)


def how_often(per_second: float) -> str:
    """'5.1 a day', where it is rarer 'one in 12 d 4 h' or 'one in 5.8 years', or 'never'."""
    if per_second <= 0:
        return "never"
    per_day = per_second * DAY_SECONDS
    if per_day * 2 * YEAR_DAYS < 1:
        return f"one in {1 / (per_day * YEAR_DAYS):,.1f} years"
    if per_day < 1:
        return f"one in {duration(1 / per_second)}"
    return f"{per_day:,.0f} a day" if per_day >= 99.5 else f"{per_day:.2g} a day"


def percent(fraction: float) -> str:
    """Two digits: '0.041 %', '3.2 %', '27 %'. Below a ten-thousandth of a percent: '0 %'."""
    value = 100 * fraction
    if value < 1e-4:
        return "0 %"
    return f"{value:.0f} %" if value >= 9.95 else f"{_two_digits(value)} %"


def dollars(amount: float) -> str:
    """'$0.12', '$37', '$1,204'; '<$0.01' for less than a cent."""
    if 0 < amount < 0.01:
        return "<$0.01"
    return f"${amount:,.0f}" if amount >= 9.995 else f"${amount:.2f}"


def _two_digits(value: float) -> str:
    """Without an exponent, which `g` would choose for small values."""
    decimals = 1 if value >= 0.995 else 2 if value >= 0.0995 else 3 if value >= 0.00995 else 4
    return f"{value:.{decimals}f}"
