"""Numbers of things, in words."""


def counted(number: int, thing: str) -> str:
    """Return "1 job" or "2 jobs"."""
    plural = thing + ("es" if thing.endswith("s") else "s")
    return f"{number} {thing if number == 1 else plural}"
