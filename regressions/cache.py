"""Bugs of caches, and of layers that decode with them."""

from properties.planting.edit import Edit
from properties.planting.trial import TestAt
from regressions.known_bug import KnownBug

CACHES = "properties/suite/test_caches.py"
CONTIGUOUS = TestAt(f"{CACHES}::test_a_contiguous_cache_in_any_order_of_calls")
SLIDING = TestAt(f"{CACHES}::test_a_sliding_cache_in_any_order_of_calls")
RECURRENT = TestAt(f"{CACHES}::test_a_recurrent_cache_in_any_order_of_calls")
PAGED = TestAt(f"{CACHES}::test_a_paged_cache_in_any_order_of_calls")
QUANTIZED = TestAt(f"{CACHES}::test_a_quantized_cache_in_any_order_of_calls")

BUGS = {
    "append_past_the_capacity": KnownBug(
        happened="Tensors that had nothing to do with it were overwritten.",
        cause=(
            "Nothing compared the length after the update with the capacity, and the kernel wrote "
            "past the end."
        ),
        source="flash-attention 638; nanotron 28",
        pinned=CONTIGUOUS,
        planted=Edit(
            "kernels.cache.contiguous", "if old + new > self.capacity:", "if old > self.capacity:"
        ),
    ),
    "chunk_longer_than_the_window": KnownBug(
        happened="Wrong keys in the window after a chunk of more tokens than it holds.",
        cause="New tokens were rolled into the window as if they were never more than it holds.",
        source="flash-linear-attention 2e38c1fa, pull request 910",
        pinned=SLIDING,
        planted=Edit(
            "kernels.cache.pages",
            "new = new & (t >= count - page_size)",
            "new = new & (t < page_size)",
        ),
    ),
    "crop_that_needs_no_key": KnownBug(
        happened="A sliding cache that had forgotten tokens could not be cropped to 0.",
        cause=(
            "The first key that the next token would see was compared with those forgotten, also "
            "where it sees none: at position 0, or in a window of 1."
        ),
        source="this project, found by a reader",
        pinned=TestAt(
            "properties/suite/test_caches.py::test_a_crop_that_needs_no_key_is_a_new_start[3-0]"
        ),
        planted=Edit(
            "kernels.cache.ring",
            "needed < min(new, self._first[n])",
            "needed < self._first[n]",
        ),
    ),
    "last_part_of_a_page_loader": KnownBug(
        happened=(
            "Rows of the last, partial wave were read through a page number that nobody had loaded."
        ),
        cause="Entries per thread were block length // threads, rounded down.",
        source="flash-attention 2745 (69e1bcbe)",
        pinned=TestAt(
            "properties/suite/test_caches.py::"
            "test_chunks_longer_than_a_tile_match_the_list_of_tokens[paged-(3, 5)]"
        ),
        planted=Edit(
            "kernels.cache.pages",
            'per_sequence = cdiv(longest, blocks["BLOCK_T"])',
            'per_sequence = max(1, longest // blocks["BLOCK_T"])',
        ),
    ),
    "layers_share_a_counter": KnownBug(
        happened=(
            "Cached decoding with two attention layers or more: rotary positions off by one in "
            "all layers but the first."
        ),
        cause=(
            "One counter for all layers was advanced by layer 0, before the layers after it had "
            "asked for their position."
        ),
        source=(
            "flash-linear-attention decd1978 (pull request 748, issues 747, 766), 729751c6 (pull "
            "request 478)"
        ),
        pinned=RECURRENT,
        planted=Edit(
            "kernels.cache.recurrent",
            "return torch.tensor(self._length[layer], ",
            "return torch.tensor(self._length[0], ",
        ),
    ),
    "length_of_the_first_layer": KnownBug(
        happened="Incoherent output once a hybrid cache held more tokens than its window.",
        cause="The number of tokens seen was that of layer 0, whatever the other layers had seen.",
        source="transformers 38156",
        pinned=RECURRENT,
        planted=Edit(
            "kernels.cache.recurrent",
            "            if length != self._length[0]:\n",
            "            if False:\n",
        ),
    ),
    "one_length_for_every_page": KnownBug(
        happened="A paged cache given one length for all sequences had wrong lengths.",
        cause=(
            "The number was expanded to k_cache.shape[0], which in a paged cache is the number of "
            "pages."
        ),
        source="flash-attention 1795 (cd9383f3)",
        pinned=PAGED,
        planted=Edit(
            "kernels.cache.kv",
            'counts = token_counts("offset", tokens if offset is None else offset, self.batch)',
            (
                "batch = self.batch if isinstance(offset, Tensor) else len(self.k_pages)\n"
                '        counts = token_counts("offset", tokens if offset is None else offset, '
                "batch)"
            ),
        ),
    ),
    "padding_is_stored": KnownBug(
        happened="NaN in the outputs of real tokens, in small paged caches.",
        cause=(
            "Padding tokens were written, all to the same slot, from where real tokens read them."
        ),
        source="transformers 46765",
        pinned=SLIDING,
        planted=Edit(
            "kernels.cache.kv",
            "        length, counts, _ = update.on_device\n        pages.append(",
            (
                "        length, counts, _ = update.on_device\n"
                "        counts = torch.full_like(counts, update.k.shape[1])\n"
                "        pages.append("
            ),
        ),
    ),
    "page_addresses_in_32_bits": KnownBug(
        happened=(
            "Appends to one sequence landed in another; paged prefill returned zeros; crashes. "
            "In large caches only."
        ),
        cause="The index of a page or a sequence was multiplied by its stride in 32 bits.",
        source=(
            "flash-attention 772; flashinfer 3130, 3136; aiter 2517; vLLM 50427, 50483 (PyTorch "
            "185264)"
        ),
        pinned=TestAt(
            "properties/suite/test_caches.py::test_pages_of_any_size_are_addressed_in_64_bits"
        ),
        planted=Edit(
            "kernels.cache.pages",
            "page = tl.load(table + block, mask=mask).to(tl.int64)",
            "page = tl.load(table + block, mask=mask)",
        ),
    ),
    "reorder_of_keys_alone": KnownBug(
        happened="Beams crossed: a sequence went on with the tokens of another.",
        cause=(
            "reorder, crop and select changed one of the two stores of a cache and left the other."
        ),
        source="transformers 45510, 48700 (QuantizedCache)",
        pinned=CONTIGUOUS,
        planted=Edit(
            "kernels.cache.kv",
            "self.k_pages, self.v_pages = self.k_pages[index], self.v_pages[index]",
            "self.k_pages, self.v_pages = self.k_pages[index], self.v_pages[: len(indices)]",
        ),
    ),
    "reset_keeps_the_length": KnownBug(
        happened="After a reset and 3 new tokens the cache was 9 tokens long.",
        cause="reset filled the storage with zeros and kept the length.",
        source="transformers 48509 (DynamicCache)",
        pinned=CONTIGUOUS,
        planted=Edit(
            "kernels.cache.kv",
            "        self._length = [0] * self.batch\n\n    @abstractmethod",
            "        self.k_pages.zero_()\n        self.v_pages.zero_()\n\n    @abstractmethod",
        ),
    ),
    "reset_keeps_the_start_of_the_window": KnownBug(
        happened="Generating twice with one sliding-window cache: the second time goes wrong.",
        cause="The position in the window was not cleared with the cache.",
        source="tvm 16132 (window_attention_current_pos); the same trigger in transformers 31917",
        pinned=SLIDING,
        planted=Edit(
            "kernels.cache.ring",
            "        super().reset()\n        self._first = [self.sinks] * self.batch",
            "        super().reset()",
        ),
    ),
    "reset_keeps_the_states": KnownBug(
        happened="A cache that was reset went on from the state it had.",
        cause="The body of reset was empty.",
        source="flash-linear-attention 2e38c1fa, pull request 910",
        pinned=RECURRENT,
        planted=Edit(
            "kernels.cache.recurrent",
            (
                "        self._states = [None] * self.layers\n"
                "        self._length = [[0] * self.batch for _ in self._length]"
            ),
            "        self._length = [[0] * self.batch for _ in self._length]",
        ),
    ),
    "rows_past_the_length": KnownBug(
        happened="NaN from a paged cache whose memory had been used before.",
        cause="Rows past the length were read as well: their weight is 0, but 0 times NaN is NaN.",
        source="vLLM 641, pull request 936",
        pinned=PAGED,
        planted=Edit(
            "kernels.cache.pages",
            "stored = inside & (position < old_length)",
            "stored = inside & (position < tl.cdiv(old_length, page_size) * page_size)",
        ),
    ),
    "scale_that_is_no_number": KnownBug(
        happened="A quantized cache with a given scale of NaN attended to NaN.",
        cause="The constructor checked only that both scales were given, or none.",
        source="this project, found by a reader",
        pinned=TestAt(
            "properties/suite/test_caches.py::"
            "test_a_wrong_quantized_cache_is_refused[k_scale-wrong5]"
        ),
        planted=Edit(
            "kernels.cache.quantized",
            "if not 0 <= scale <= torch.finfo(torch.float32).max:",
            "if scale < 0 or scale > torch.finfo(torch.float32).max:",
        ),
    ),
    "scales_stay_behind": KnownBug(
        happened="Beams of a quantized cache crossed.",
        cause="reorder, crop and select changed one of the stores of a cache and left the others.",
        source="transformers 45510, 48700 (QuantizedCache)",
        pinned=QUANTIZED,
        planted=Edit(
            "kernels.cache.quantized",
            "return (self.k_pages, self.v_pages, *scales)",
            "return self.k_pages, self.v_pages",
        ),
    ),
    "table_too_short_for_the_length": KnownBug(
        happened="Silent corruption: the table of pages was read past its end.",
        cause="Nothing compared the lengths with the pages of the table.",
        source="flash-attention 2709, pull request 2711 (77aacb68)",
        pinned=TestAt("properties/suite/test_caches.py::test_wrong_pages_are_refused"),
        planted=Edit(
            "kernels.cache.paged",
            'if tokens > len(held) * sizes["page_size"]:',
            'if tokens > sizes["P"] * sizes["page_size"]:',
        ),
    ),
    "values_appended_like_keys": KnownBug(
        happened="Wrong values in a cache whose value heads have another width than its key heads.",
        cause="The append took the shape of V from that of K.",
        source="flash-attention 6d199aa2, e3b2400a, 9e07d6d3",
        pinned=CONTIGUOUS,
        planted=Edit(
            "kernels.cache.pages",
            (
                "        stride_vp, stride_vr, stride_vpg, stride_vpd,\n"
                "        V, BLOCK_V,\n"
                "    )  # fmt: skip\n"
                "\n"
                "\n"
                "@triton.jit\n"
                "def _gather_rows("
            ),
            (
                "        stride_vp, stride_vr, stride_vpg, stride_vpd,\n"
                "        K, BLOCK_V,\n"
                "    )  # fmt: skip\n"
                "\n"
                "\n"
                "@triton.jit\n"
                "def _gather_rows("
            ),
        ),
    ),
    "window_cut_before_the_chunk_attends": KnownBug(
        happened=(
            "Chunked prefill with a sliding window: the first queries of each chunk miss keys."
        ),
        cause=(
            "Keys came from the window after it had been cut to the newest tokens, which the first "
            "queries of the chunk still needed."
        ),
        source="flash-linear-attention 0.6.0 (layers/attn, rodimus)",
        pinned=SLIDING,
        planted=Edit(
            "kernels.cache.kv",
            "        view = self._view(update)\n        self._write(update)\n        return view",
            "        self._write(update)\n        return self._view(update)",
        ),
    ),
    "window_one_key_too_wide": KnownBug(
        happened="A sliding window of W let each query attend to W + 1 keys.",
        cause="W was passed on to an attention whose bounds include the key W back.",
        source="transformers 39408",
        pinned=SLIDING,
        planted=Edit(
            "kernels.cache.sliding",
            'return options | {"window": self.window}',
            'return options | {"window": self.window + 1}',
        ),
    ),
    "window_that_is_just_full": KnownBug(
        happened="Wrong content as soon as prompt and generated tokens together reach the window.",
        cause=(
            "The update that just fills the window dropped a token, where only the one after it "
            "has "
            "to."
        ),
        source="transformers 37574",
        pinned=SLIDING,
        planted=Edit(
            "kernels.cache.ring",
            "max(self.sinks, length - (self.window - 1))",
            "max(self.sinks, length - (self.window - 1), length == self.window - 1)",
        ),
    ),
}
