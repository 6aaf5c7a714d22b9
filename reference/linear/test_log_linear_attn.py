import pytest
import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows

both_forms = both_forms_of(reference.log_linear_attn)


@both_forms
def test_each_token_reads_the_blocks_of_its_partition(form: Form) -> None:
    ones = torch.ones(1, 6, 1, 1, dtype=torch.float64)
    v = rows(1, 2, 4, 8, 16, 32)[None, :, None, None]
    levels = rows(1, 100, 1000, 10000).expand(1, 6, 1, 4)
    o = form(ones, ones, v, levels, scale=1.0)
    # {0}, {1 | 0}, {2 | 01}, {3 | 2 | 01}, {4 | 0123}, {5 | 4 | 0123}, in levels
    # 0, 0 1, 0 2, 0 1 2, 0 3 and 0 1 3.
    expected = rows(1, 102, 3004, 3408, 150016, 151632)
    assert torch.equal(o.flatten(), expected)


@both_forms
def test_a_state_decays_after_it_has_moved_up(form: Form) -> None:
    ones = torch.ones(1, 3, 1, 1, dtype=torch.float64)
    v, g = rows(4, 8, 3)[None, :, None, None], rows(9, 1 / 2, 1 / 4).log()[None, :, None]
    levels = rows([1, 0, 0], [1, 10, 0], [1, 0, 10])[None, :, None]
    o = form(ones, ones, v, levels, g, scale=1.0)
    # Token 3: 3 + 10 (8 + 4 / 2) / 4.
    torch.testing.assert_close(o.flatten(), rows(4, 28, 28), rtol=1e-15, atol=0)


@both_forms
def test_with_equal_scales_it_is_simple_gla(form: Form) -> None:
    q, k, v = draw(0, 2, 11, 2, 3), draw(1, 2, 11, 2, 3), draw(2, 2, 11, 4, 5)
    g, levels = -draw(3, 2, 11, 4).abs(), torch.ones(2, 11, 4, 5, dtype=torch.float64)
    q4, k4 = (x.repeat_interleave(2, dim=2) for x in (q, k))
    expected, _ = reference.simple_gla(q4, k4, v, g)
    o = form(q, k, v, levels, g)
    torch.testing.assert_close(o, expected, rtol=1e-13, atol=1e-13)


@both_forms
def test_too_few_levels_are_refused(form: Form) -> None:
    x = draw(0, 1, 9, 1, 2)
    with pytest.raises(ValueError, match="level_scales: L=4, expected at least 5 levels for T=9"):
        form(x, x, x, draw(1, 1, 9, 1, 4))
