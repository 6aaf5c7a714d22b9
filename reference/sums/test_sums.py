import math

import pytest
import torch

import reference
from reference.testing import Form, both_forms_of, draw, rows


@both_forms_of(reference.cumsum)
def test_sums_start_anew_in_each_chunk(form: Form) -> None:
    x = rows(1, 2, 4, 8, 16)[None, :, None]
    assert torch.equal(form(x).flatten(), rows(1, 3, 7, 15, 31))
    assert torch.equal(form(x, reverse=True).flatten(), rows(31, 30, 28, 24, 16))
    assert torch.equal(form(x, chunk_size=2).flatten(), rows(1, 3, 4, 12, 16))
    assert torch.equal(form(x, chunk_size=2, reverse=True).flatten(), rows(3, 2, 12, 8, 16))
    packed = form(x, chunk_size=2, cu_seqlens=torch.tensor([0, 1, 1, 5]))
    assert torch.equal(packed.flatten(), rows(1, 2, 6, 8, 24))


@both_forms_of(reference.cumsum)
def test_chunks_of_nothing_are_refused(form: Form) -> None:
    with pytest.raises(ValueError, match="chunk_size: 0, expected at least 1"):
        form(draw(0, 1, 3, 2), chunk_size=0)


@both_forms_of(reference.logcumsumexp)
def test_three_tokens_by_hand(form: Form) -> None:
    x = rows(-math.inf, math.log(2), math.log(5))[None, :, None]
    z, state = form(x, output_final_state=True)
    want = rows(-math.inf, math.log(2), math.log(7))
    torch.testing.assert_close(z.flatten(), want, rtol=1e-15, atol=0)
    torch.testing.assert_close(state.flatten(), want[-1:], rtol=1e-15, atol=0)
    z, _ = form(x, initial_state=rows([0]))
    want = rows(0, math.log(3), math.log(8))
    torch.testing.assert_close(z.flatten(), want, rtol=1e-15, atol=1e-15)


@both_forms_of(reference.logcumsumexp)
def test_sums_that_overflow_have_logarithms(form: Form) -> None:
    z, _ = form(rows(1e4, 1e4, -1e4)[None, :, None])
    torch.testing.assert_close(z.flatten(), 1e4 + rows(0, 1, 1) * math.log(2), rtol=1e-15, atol=0)


@both_forms_of(reference.solve_tril)
def test_two_chunks_by_hand(form: Form) -> None:
    # The second chunk has two rows of three. No form reads a 9.
    A = rows([9, 9, 9], [2, 9, 9], [3, 4, 9], [9, 9, 9], [5, 9, 9])[None, :, None]
    want = rows([1, 0, 0], [-2, 1, 0], [5, -4, 1], [1, 0, 0], [-5, 1, 0])
    assert torch.equal(form(A)[0, :, 0], want)


@both_forms_of(reference.solve_tril)
def test_it_is_an_inverse(form: Form) -> None:
    A = draw(0, 2, 4, 3, 4) / 2
    X, L = form(A).transpose(1, 2), A.transpose(1, 2).tril(-1)
    eye = torch.eye(4, dtype=torch.float64).expand_as(L)
    torch.testing.assert_close((eye + L) @ X, eye, rtol=1e-14, atol=1e-14)


@both_forms_of(reference.logcumsumexp)
def test_where_nothing_is_summed_the_gradient_is_zero(form: Form) -> None:
    x = rows(-math.inf, -math.inf, 0, 0)[None, :, None].requires_grad_()
    z, _ = form(x)
    (dx,) = torch.autograd.grad(z, x, torch.ones_like(z))
    torch.testing.assert_close(dx.flatten(), rows(0, 0, 1.5, 0.5), rtol=1e-15, atol=0)


@both_forms_of(reference.mean_pooling)
def test_means_of_chunks_by_hand(form: Form) -> None:
    x = rows(1, 3, 5, 7, 11)[None, :, None, None]
    assert torch.equal(form(x, 2).flatten(), rows(2, 6, 11))
    assert torch.equal(form(x, 4).flatten(), rows(4, 11))
    packed = form(x, 2, cu_seqlens=torch.tensor([0, 3, 3, 4, 5]))
    assert torch.equal(packed.flatten(), rows(2, 5, 7, 11))
    assert form(x[:, :0], 2).shape == (1, 0, 1, 1)


@both_forms_of(reference.mean_pooling)
def test_means_of_no_tokens_are_refused(form: Form) -> None:
    with pytest.raises(ValueError, match="chunk_size: 0, expected at least 1"):
        form(draw(0, 1, 3, 2, 1), 0)


@both_forms_of(reference.solve_tril)
def test_triangles_without_columns_are_refused(form: Form) -> None:
    with pytest.raises(ValueError, match="A: no columns"):
        form(torch.zeros(1, 3, 2, 0))
