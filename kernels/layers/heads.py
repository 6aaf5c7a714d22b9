"""The sizes that layers of grouped heads share."""


def check_heads(*, num_heads: int, num_kv_heads: int | None, **sizes: int) -> int:
    """Return the number of key and value heads, which is that of the queries if it is None.

    Raises:
        ValueError: one of the sizes is below 1, or the query heads form no groups.
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    sizes |= {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name}: {size}, expected at least 1")
    if num_heads % num_kv_heads:
        wanted = f"a divisor of num_heads = {num_heads}"
        raise ValueError(f"num_kv_heads: {num_kv_heads}, expected {wanted}")
    return num_kv_heads
