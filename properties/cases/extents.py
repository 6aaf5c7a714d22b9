"""The dims along which a case is large: one or two of them in few cases, none in most."""

from collections.abc import Container

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

# Some bugs appear only past some number of tokens, rows, heads, sequences or channels.
Extent = frozenset[str]
ORDINARY: list[Extent] = [frozenset()]
_ONE = ("wide", "wide", "rows", "heads", "groups", "sequences")
_TWO = [
    *(("wide", other) for other in ("rows", "heads", "groups", "sequences")),
    *((one, other) for one in ("rows", "sequences") for other in ("heads", "groups")),
]
FEW_TOKENS = ORDINARY * 32 + [frozenset({one}) for one in _ONE] + [frozenset(two) for two in _TWO]
_LONG = [frozenset({"tokens", other}) for other in ("tokens", "tokens", *dict.fromkeys(_ONE))]
EXTENTS = FEW_TOKENS + _LONG
# Small dims: one head or two; a few channels, or the 16 to 20 around what a dot needs.
_THIN = {
    **dict.fromkeys("KVD", st.one_of(st.integers(1, 4), st.integers(16, 20))),
    **dict.fromkeys("PHR", st.integers(1, 2)),
    "G": st.just(1),
}
# Heads of an indexer, layers, slots: counts that few ops have.
_COUNTS = "ILM"
_MANY = st.one_of(st.sampled_from([33, 64, 65]), st.integers(9, 32), st.integers(9, 70))
MANY_OF_TWO = st.integers(9, 12)
_WIDE = st.sampled_from([129, 136, 160, 192, 200, 256])


def large_count(extent: Extent) -> SearchStrategy[int]:
    """Counts of rows, heads or sequences, of fewer where a case is large along two dims."""
    return _MANY if len(extent) == 1 else MANY_OF_TWO


def large_dims(draw: DrawFn, extent: Extent, letters: Container[str]) -> dict[str, int]:
    """Draw the sizes of a case that is large in some dim; none if the other sizes may stay as they
    are.
    """
    if not extent:
        return {}
    dims: dict[str, int] = {}
    if extent != {"wide"}:
        dims = {letter: draw(size) for letter, size in _THIN.items()}
    if "wide" in extent:
        # Two widths beyond 128 differ, as equal ones are drawn anyway.
        wide = draw(st.lists(_WIDE, min_size=2, max_size=2, unique=True))
        both = "tokens" not in extent and draw(st.booleans())
        which = "KVD" if both or extent == {"wide"} else draw(st.sampled_from(["KD", "VD"]))
        dims |= {
            letter: n for letter, n in zip("KVD", (*wide, wide[0]), strict=True) if letter in which
        }
    if "heads" in extent:
        dims |= {"H": draw(large_count(extent)), "G": draw(large_count(extent))}
    if "groups" in extent:
        dims["R"] = draw(st.one_of(st.integers(7, 17), st.sampled_from([31, 32, 33, 64, 71])))
        dims |= {letter: draw(large_count(extent)) for letter in _COUNTS if letter in letters}
    return dims
