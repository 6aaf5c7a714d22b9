"""Instructions to NumPy source: `LOWERINGS` at the end has an entry per operation."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from . import ptx
from .frontend import Function, Instruction, Type, walk
from .numerics import ELEMENTS, ROUNDING
from .writer import FunctionWriter, Lowering, Module, Unsupported

AXES = {"x": 0, "y": 1, "z": 2}
IGNORED = ("fastmath<", "overflow<", "allow_reorder", "efficient_layout")


def check_words(instruction: Instruction) -> None:
    for word in instruction.words:
        if not word.startswith(IGNORED):
            raise Unsupported(instruction, word)


def rounded(element: str, expression: str) -> str:
    return f"round_{short(element)}({expression})" if element in ROUNDING else expression


def short(element: str) -> str:
    return {"f8E4M3FN": "f8e4m3", "f8E5M2": "f8e5m2"}.get(element, element)


def value_dtype(element: str) -> str:
    return f"np.{ELEMENTS[element].value.name}"


def elementwise(template: str, rounds: bool = True, on_bool: str = "") -> Lowering:
    """`{0}`, `{1}`, `{2}` are the operands; `on_bool` is the same operation for i1."""

    def lower(w: FunctionWriter, i: Instruction) -> None:
        check_words(i)
        element = i.type.element
        text = on_bool if on_bool and element == "i1" else template
        expression = text.format(*(w.use(name) for name in i.operands))
        w.define(i.results[0], rounded(element, expression) if rounds else expression)

    return lower


def linear(symbol: str, ufunc: str, on_bool: str) -> Lowering:
    """Integer arithmetic; values on their way to an address stay exact in int64."""
    plain = elementwise(f"{{0}} {symbol} {{1}}", on_bool=f"{{0}} {on_bool} {{1}}")

    def lower(w: FunctionWriter, i: Instruction) -> None:
        if i.results[0] not in w.facts.wide:
            plain(w, i)
            return
        check_words(i)
        left, right = (w.name(name) for name in i.operands)
        if any(name in w.facts.wide for name in i.operands):
            w.define(i.results[0], f"{left} {symbol} {right}")
        else:
            w.define(i.results[0], f"{ufunc}({left}, {right}, dtype=np.int64)")

    return lower


def constant(w: FunctionWriter, i: Instruction) -> None:
    kind = i.type
    dtype = value_dtype(kind.element)
    text = i.words[0]
    if match := re.fullmatch(r"dense<(.*)>", text):
        text = match[1]
    if text.startswith('"'):
        raise Unsupported(i, "a constant in hexadecimal blocks")
    if text.startswith("["):
        numbers = re.findall(r"[^\[\],\s]+", text)
        values = ", ".join(literal(number, kind.element) for number in numbers)
        expression = f"np.array([{values}], {dtype}).reshape{(1, *kind.shape)}"
    else:
        ones = (1,) * (kind.rank + 1)
        expression = f"np.full({ones}, {literal(text, kind.element)}, {dtype})"
    # Decimals of a narrow type are printed with just the digits that identify it.
    expression = rounded(kind.element, expression)
    w.names[i.results[0]] = w.module.constant(i.results[0], expression)


def literal(text: str, element: str) -> str:
    """A number of the IR as a Python expression; hexadecimal floats are bit patterns."""
    if text in ("true", "false"):
        return text.capitalize()
    if element in ELEMENTS and "f" in element and text.startswith("0x"):
        size = (len(text) - 2) // 2
        if element == "bf16":
            value = struct.unpack(">f", bytes.fromhex(text[2:] + "0000"))[0]
        else:
            value = struct.unpack({2: ">e", 4: ">f", 8: ">d"}[size], bytes.fromhex(text[2:]))[0]
        return repr(value) if value - value == 0 else f"float({str(value)!r})"
    return text


def poison(w: FunctionWriter, i: Instruction) -> None:
    """A value that nobody may use, as the IR has it."""
    ones = (1,) * (i.type.rank + 1)
    text = f"np.zeros({ones}, {value_dtype(i.type.element)})"
    w.names[i.results[0]] = w.module.constant(i.results[0], text)


def make_range(w: FunctionWriter, i: Instruction) -> None:
    text = f"np.arange({i.integer('start')}, {i.integer('end')}, dtype=np.int32)[None]"
    w.names[i.results[0]] = w.module.constant(f"range_{i.integer('end')}", text)


def program_id(w: FunctionWriter, i: Instruction) -> None:
    w.define(i.results[0], f"slab.ids[{AXES[i.words[0]]}]")


def num_programs(w: FunctionWriter, i: Instruction) -> None:
    w.define(i.results[0], f"slab.counts[{AXES[i.words[0]]}]")


def shaping(text: Callable[[Instruction, Type], str]) -> Lowering:
    """A change of shape: `text` follows the array, or takes its place where it has a `{}`."""

    def lower(w: FunctionWriter, i: Instruction) -> None:
        check_words(i)
        source = i.operands[0]
        change = text(i, w.type(source))
        change = change if "{}" in change else "{}" + change
        # A wide value stays wide through its change of shape, if the result is wide too.
        name = w.name(source) if i.results[0] in w.facts.wide else w.use(source)
        if i.type.is_pointer:
            w.define(i.results[0], f"({name}[0], {change.format(name + '[1]')})")
        else:
            w.define(i.results[0], change.format(name))

    return lower


def broadcast(w: FunctionWriter, i: Instruction) -> None:
    """Nothing: axes of length 1 stand for any length."""
    source, result = i.operands[0], i.results[0]
    if source in w.facts.wide and result not in w.facts.wide:
        w.define(result, w.use(source))
    else:
        w.alias(result, source)


def expand_dims(i: Instruction, _: Type) -> str:
    return "[" + ":, " * (i.integer("axis") + 1) + "None]"


def splat(i: Instruction, _: Type) -> str:
    return f".reshape(-1{', 1' * i.type.rank})"


def transpose(i: Instruction, _: Type) -> str:
    return f".transpose(0, {', '.join(str(axis + 1) for axis in i.integers('order'))})"


def reshaped(i: Instruction, source: Type) -> str:
    return f"reshape({{}}, {source.shape}, {i.type.shape})"


def compare_integers(w: FunctionWriter, i: Instruction) -> None:
    predicate = i.words[0]
    symbol = {"e": "==", "n": "!="}.get(predicate[0], "")
    left, right = (w.use(name) for name in i.operands)
    if predicate[0] == "u":
        left, right = f"unsigned({left})", f"unsigned({right})"
    if not symbol:
        symbol = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}[predicate[1:]]
        if w.facts.element(i.operands[0]) == "i1" and predicate[0] == "s":
            # True is -1 as a signed number of one bit.
            left, right = right, left
    w.define(i.results[0], f"{left} {symbol} {right}")


def compare_floats(w: FunctionWriter, i: Instruction) -> None:
    left, right = (w.use(name) for name in i.operands)
    text = FLOAT_COMPARISONS.get(i.words[0])
    if text is None:
        raise Unsupported(i, i.words[0])
    w.define(i.results[0], text.format(left, right))


FLOAT_COMPARISONS = {
    "oeq": "{0} == {1}",
    "ogt": "{0} > {1}",
    "oge": "{0} >= {1}",
    "olt": "{0} < {1}",
    "ole": "{0} <= {1}",
    "one": "({0} < {1}) | ({0} > {1})",
    "ord": "({0} == {0}) & ({1} == {1})",
    "ueq": "~(({0} < {1}) | ({0} > {1}))",
    "ugt": "~({0} <= {1})",
    "uge": "~({0} < {1})",
    "ult": "~({0} >= {1})",
    "ule": "~({0} > {1})",
    "une": "{0} != {1}",
    "uno": "({0} != {0}) | ({1} != {1})",
}


def select(w: FunctionWriter, i: Instruction) -> None:
    condition, one, two = (w.use(name) for name in i.operands)
    rank = i.type.rank
    if rank and not w.type(i.operands[0]).rank:
        condition = f"{condition}.reshape(-1{', 1' * rank})"
    chosen = "choose" if i.type.is_pointer else "np.where"
    w.define(i.results[0], f"{chosen}({condition}, {one}, {two})")


def convert(w: FunctionWriter, i: Instruction) -> None:
    """Between float types, between integer types, and from integer to float."""
    check_words(i)
    source, target = w.type(i.operands[0]).element, i.type.element
    value = w.use(i.operands[0])
    if i.attributes.get("rounding", "rtne") != "rtne" and target in ROUNDING:
        raise Unsupported(i, i.attributes["rounding"])
    if i.name in ("arith.uitofp", "arith.extui"):
        value = f"unsigned({value})" if source != "i1" else value
    if i.name == "arith.extsi" and source == "i1":
        value = f"-{value}.view(np.int8)"
    if i.name == "arith.trunci" and target == "i1":
        w.define(i.results[0], f"({value} & 1) != 0")
        return
    if target in ROUNDING and i.name in ("arith.sitofp", "arith.uitofp"):
        value = f"{value}.astype(np.float32)"
    if target in ROUNDING:
        w.define(i.results[0], rounded(target, value))
    elif ELEMENTS[source].value == ELEMENTS[target].value:
        w.define(i.results[0], value)
    else:
        w.define(i.results[0], f"{value}.astype({value_dtype(target)})")


def extend_signed(w: FunctionWriter, i: Instruction) -> None:
    source = i.operands[0]
    if source in w.facts.wide and i.results[0] in w.facts.addressing:
        site = w.site(i, "", True)
        w.define(i.results[0], f"slab.widen({site}, {w.name(source)}, {w.pred})")
    else:
        convert(w, i)


def to_integer(w: FunctionWriter, i: Instruction) -> None:
    dtype = value_dtype(i.type.element)
    if i.name == "arith.fptoui":
        unsigned = dtype.replace("np.", "np.u")
        w.define(i.results[0], f"to_integer({w.use(i.operands[0])}, {unsigned}).view({dtype})")
    else:
        w.define(i.results[0], f"to_integer({w.use(i.operands[0])}, {dtype})")


def bitcast(w: FunctionWriter, i: Instruction) -> None:
    source, target = w.type(i.operands[0]), i.type
    value = w.use(i.operands[0])
    if target.is_pointer:
        w.define(i.results[0], f"recast({value}, {target.pointee!r})")
    elif source.element == target.element:
        w.define(i.results[0], value)
    else:
        w.define(i.results[0], f"bitcast({value}, {source.element!r}, {target.element!r})")


def add_pointer(w: FunctionWriter, i: Instruction) -> None:
    pointer, offset = i.operands
    size = ELEMENTS[i.type.pointee].size
    narrow = w.facts.element(offset) != "i64"
    text = f"advance({w.name(pointer)}, {w.name(offset)}, {size}{', True' if narrow else ''})"
    w.define(i.results[0], text)


def pointer_to_integer(w: FunctionWriter, i: Instruction) -> None:
    w.define(i.results[0], f"address_of({w.use(i.operands[0])})")


def integer_to_pointer(w: FunctionWriter, i: Instruction) -> None:
    w.define(i.results[0], f"(ANYWHERE, {w.use(i.operands[0])})")


def access(w: FunctionWriter, i: Instruction) -> str:
    """Site of a memory access."""
    pointer = w.type(i.operands[0])
    if not pointer.is_pointer:
        raise Unsupported(i, "not a plain pointer")
    return w.site(i, pointer.pointee, w.facts.narrow_address(i.operands[0]))


def keywords(**arguments: str) -> str:
    return "".join(f", {key}={text}" for key, text in arguments.items() if text not in ("", "None"))


def load(w: FunctionWriter, i: Instruction) -> None:
    pointer, *rest = (w.use(name) for name in i.operands)
    site = access(w, i)
    extra = "".join(f", {text}" for text in rest) + keywords(pred=w.pred)
    w.define(i.results[0], f"slab.load({site}, {pointer}{extra})")


def store(w: FunctionWriter, i: Instruction) -> None:
    pointer, value, *mask = (w.use(name) for name in i.operands)
    extra = "".join(f", {text}" for text in mask) + keywords(pred=w.pred)
    w.emit(f"slab.store({access(w, i)}, {pointer}, {value}{extra})")


def atomic_rmw(w: FunctionWriter, i: Instruction) -> None:
    pointer, value, *mask = (w.use(name) for name in i.operands)
    wanted = "" if w.facts.uses.get(i.results[0]) else "False"
    extra = "".join(f", {text}" for text in mask) + keywords(pred=w.pred, wanted=wanted)
    text = f"slab.atomic({access(w, i)}, {i.words[0]!r}, {pointer}, {value}{extra})"
    w.define(i.results[0], text)


def atomic_cas(w: FunctionWriter, i: Instruction) -> None:
    pointer, expected, value = (w.use(name) for name in i.operands)
    extra = keywords(pred=w.pred, compare=expected)
    w.define(i.results[0], f"slab.atomic({access(w, i)}, 'cas', {pointer}, {value}{extra})")


def dot(w: FunctionWriter, i: Instruction) -> None:
    check_words(i)
    a, b, c = i.operands
    inner = w.type(a).shape[-1]
    zero = w.facts.definition.get(c)
    is_zero = zero is not None and zero.name == "arith.constant" and zero.words[0] in ZEROS
    left, right = w.use(a), w.use(b)
    if i.attributes.get("inputPrecision", "ieee") == "tf32" and w.facts.element(a) == "f32":
        left, right = f"slab.dot_operand({left})", f"slab.dot_operand({right})"
    text = f"dot({left}, {right}, {'None' if is_zero else w.use(c)}, {inner})"
    w.define(i.results[0], rounded(i.type.element, text))


ZEROS = ("dense<0.000000e+00>", "dense<0>")

UFUNCS = {
    "arith.addf": "np.add",
    "arith.addi": "np.add",
    "arith.mulf": "np.multiply",
    "arith.muli": "np.multiply",
    "arith.maxnumf": "np.fmax",
    "arith.minnumf": "np.fmin",
    "arith.maximumf": "np.maximum",
    "arith.minimumf": "np.minimum",
    "arith.maxsi": "np.maximum",
    "arith.minsi": "np.minimum",
    "arith.andi": "np.bitwise_and",
    "arith.ori": "np.bitwise_or",
    "arith.xori": "np.bitwise_xor",
}


def single_ufunc(i: Instruction) -> str | None:
    """The NumPy operation that a region amounts to, if it is just one."""
    (block,) = i.regions[0]
    if len(block.instructions) != 2 or len(i.operands) != 1:
        return None
    operation, last = block.instructions
    element = operation.types[0].element
    arguments = [name for name, _ in block.arguments]
    if sorted(operation.operands) != sorted(arguments) or last.operands != operation.results:
        return None
    sums = operation.name in ("arith.addf", "arith.mulf", "arith.addi", "arith.muli")
    if sums and (element in ROUNDING or element == "i1"):
        return None
    return UFUNCS.get(operation.name)


def region_function(w: FunctionWriter, i: Instruction) -> str:
    """A reduce or scan region as a function of its own."""
    if len(i.regions[0]) != 1:
        raise Unsupported(i, "branches in its region")
    block = i.regions[0][0]
    for inner in walk([block]):
        for name in inner.operands:
            source = w.facts.definition.get(name)
            outside = source is not None and source not in list(walk([block]))
            if outside and source is not None and source.name != "arith.constant":
                raise Unsupported(i, "a region that uses a value from outside")
    name = w.module.fresh("combine")
    lines, depth, pred = w.lines, w.depth, w.pred
    w.lines, w.depth, w.pred = [], 1, "None"
    last = w.block(block)
    w.emit(f"return {w.tuple(w.use(value) for value in last.operands)}")
    arguments = ", ".join(w.name(argument) for argument, _ in block.arguments)
    w.module.body += ["", "", f"def {name}({arguments}):", *w.lines]
    w.lines, w.depth, w.pred = lines, depth, pred
    return name


def assign_all(w: FunctionWriter, results: list[str], text: str) -> None:
    targets = ", ".join(w.name(name) for name in results)
    w.emit(f"{targets}{',' if len(results) == 1 else ''} = {text}")


def reduce(w: FunctionWriter, i: Instruction) -> None:
    axis, tile = i.integer("axis"), w.type(i.operands[0]).shape
    ufunc = single_ufunc(i)
    if ufunc:
        text = f"reduce_with({ufunc}, {w.use(i.operands[0])}, {axis}, {tile})"
        w.define(i.results[0], text)
        return
    values = w.tuple(w.use(name) for name in i.operands)
    text = f"reduce_region({region_function(w, i)}, {values}, {axis}, {tile})"
    assign_all(w, i.results, text)


def scan(w: FunctionWriter, i: Instruction) -> None:
    axis, tile = i.integer("axis"), w.type(i.operands[0]).shape
    reverse = i.attributes.get("reverse") == "true"
    ufunc = single_ufunc(i)
    if ufunc:
        text = f"accumulate_with({ufunc}, {w.use(i.operands[0])}, {axis}, {tile}, {reverse})"
        w.define(i.results[0], text)
        return
    values = w.tuple(w.use(name) for name in i.operands)
    text = f"scan_region({region_function(w, i)}, {values}, {axis}, {tile}, {reverse})"
    assign_all(w, i.results, text)


def for_loop(w: FunctionWriter, i: Instruction) -> None:
    (body,) = i.regions[0]
    if i.words:
        raise Unsupported(i, "unsigned bounds")
    (induction, _), *carried = body.arguments
    for (name, _), init in zip(carried, i.operands[3:], strict=True):
        w.emit(f"{w.name(name)} = {w.use(init)}")
    inside = w.module.fresh("in_loop")
    low, high, step = (w.use(name) for name in i.operands[:3])
    w.emit(f"for {w.name(induction)}, {inside} in counted({low}, {high}, {step}, {w.pred}):")
    start = len(w.lines)
    last = w.under(inside, body)
    w.depth += 1
    carry(w, inside, [name for name, _ in carried], [w.use(name) for name in last.operands])
    if len(w.lines) == start:
        w.emit("pass")
    w.depth -= 1
    for result, (name, _) in zip(i.results, carried, strict=True):
        w.alias(result, name)


def carry(w: FunctionWriter, inside: str, targets: list[str], values: list[str]) -> None:
    """Hand values to the next turn of a loop; programs that have left keep their old ones."""
    names = [w.name(target) for target in targets]
    changed = [(old, value) for old, value in zip(names, values, strict=True) if old != value]
    if not changed:
        return
    old, new = (w.tuple(side) for side in zip(*changed, strict=True))
    w.emit(f"{old[1:-1]} = carried({inside}, {w.pred}, {new}, {old})")


def if_else(w: FunctionWriter, i: Instruction) -> None:
    there, here = w.module.fresh("then"), w.module.fresh("else")
    w.emit(f"{there}, {here} = branch({w.pred}, {w.use(i.operands[0])})")
    results = [w.name(name) for name in i.results]
    for number, (pred, region) in enumerate(zip((there, here), i.regions, strict=False)):
        (block,) = region
        w.emit(f"if {pred} is not False:")
        start = len(w.lines)
        last = w.under(pred, block)
        w.depth += 1
        for name, value in zip(results, last.operands, strict=True):
            new = w.use(value)
            if number:
                new = f"{new} if {there} is False else merge({there}, {name}, {new})"
            w.emit(f"{name} = {new}")
        if len(w.lines) == start:
            w.emit("pass")
        w.depth -= 1


def while_loop(w: FunctionWriter, i: Instruction) -> None:
    (before,), (after,) = i.regions
    for (name, _), init in zip(before.arguments, i.operands, strict=True):
        w.emit(f"{w.name(name)} = {w.use(init)}")
    looping, again = w.module.fresh("in_while"), w.module.fresh("again")
    w.emit(f"{looping} = {w.pred}")
    for name in i.results:
        w.emit(f"{w.name(name)} = None")
    w.emit("while True:")
    outer = w.pred
    w.depth += 1
    w.emit(f"slab.tick({w.site(i)})")
    w.depth -= 1
    last = w.under(looping, before)
    w.depth += 1
    condition, *passed = (w.use(name) for name in last.operands)
    w.emit(f"{again}, _ = branch({looping}, {condition})")
    carry(w, looping, i.results, passed)
    w.emit(f"if {again} is False:")
    w.emit("    break")
    for (name, _), value in zip(after.arguments, passed, strict=True):
        w.emit(f"{w.name(name)} = {value}")
    w.depth -= 1
    last = w.under(again, after)
    w.depth += 1
    w.pred = outer
    carry(w, again, [n for n, _ in before.arguments], [w.use(n) for n in last.operands])
    w.emit(f"{looping} = {again}")
    w.depth -= 1


def call(w: FunctionWriter, i: Instruction) -> None:
    callee = i.words[0].lstrip("@").strip('"')
    arguments = ", ".join(["slab", w.pred, *(w.use(name) for name in i.operands)])
    text = f"{w.module.names[callee]}({arguments})"
    if i.results:
        assign_all(w, i.results, text)
    else:
        w.emit(text)


def barrier(w: FunctionWriter, i: Instruction) -> None:
    """Nothing: the elements of a tile never run ahead of each other."""


def assertion(w: FunctionWriter, i: Instruction) -> None:
    """`tl.device_assert`, and `tl.assume`, which promises as much."""
    w.emit(f"slab.check_assertion({w.site(i)}, {w.use(i.operands[0])}, {w.pred})")


def device_print(w: FunctionWriter, i: Instruction) -> None:
    values = w.tuple(w.use(name) for name in i.operands)
    w.emit(f"slab.show({w.site(i)}, {values}, {w.pred})")


def clamp(w: FunctionWriter, i: Instruction) -> None:
    low, high = "np.fmax", "np.fmin"
    if i.attributes.get("propagateNan") == "all":
        low, high = "np.maximum", "np.minimum"
    x, least, most = (w.use(name) for name in i.operands)
    w.define(i.results[0], rounded(i.type.element, f"{high}({low}({x}, {least}), {most})"))


def split_last(w: FunctionWriter, i: Instruction) -> None:
    assign_all(w, i.results, f"split({w.use(i.operands[0])})")


def concatenated(w: FunctionWriter, i: Instruction) -> None:
    one, two = (w.use(name) for name in i.operands)
    w.define(i.results[0], f"concatenate({one}, {two}, {w.type(i.operands[0]).shape})")


def gathered(w: FunctionWriter, i: Instruction) -> None:
    (source, index), axis = i.operands, i.integer("axis")
    shapes = f"{w.type(source).shape}, {i.type.shape}"
    text = f"{w.site(i)}, {w.use(source)}, {w.use(index)}, {axis}, {shapes}, {w.pred}"
    w.define(i.results[0], f"slab.gather({text})")


def histogram(w: FunctionWriter, i: Instruction) -> None:
    source, *mask = i.operands
    text = w.use(mask[0]) if mask else "None"
    length, bins = w.type(source).shape[0], i.type.shape[0]
    w.define(i.results[0], f"histogram({w.use(source)}, {text}, {length}, {bins})")


def external(w: FunctionWriter, i: Instruction) -> None:
    """A function of libdevice, by its symbol."""
    symbol = i.attributes["symbol"].strip('"')
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    text = EXTERNAL.get(name) or EXTERNAL.get(name.removesuffix("f"))
    if text is None:
        raise Unsupported(i, symbol)
    expression = text.format(*(w.use(name) for name in i.operands))
    w.define(i.results[0], rounded(i.type.element, expression))


def inline_assembly(w: FunctionWriter, i: Instruction) -> None:
    kinds = [w.type(name).element for name in (*i.results, *i.operands)]
    if set(kinds) != {"f32"} or i.integer("packed_element") != 1:
        raise Unsupported(i, "other than float32, one lane at a time")
    given = [w.use(name) for name in i.operands]
    try:
        lines, values = ptx.translate(i.strings[0], len(i.results), given, w.module.fresh)
    except ptx.UnknownAssembly as error:
        raise Unsupported(i, str(error)) from error
    for line in lines:
        w.emit(line)
    for result, value in zip(i.results, values, strict=True):
        w.define(result, value)


EXTERNAL = {
    "tanh": "np.tanh({0})",
    "exp": "np.exp({0})",
    "exp2": "np.exp2({0})",
    "exp10": "np.power({0}.dtype.type(10), {0})",
    "expm1": "np.expm1({0})",
    "log": "np.log({0})",
    "log10": "np.log10({0})",
    "log2": "np.log2({0})",
    "log1p": "np.log1p({0})",
    "sqrt": "np.sqrt({0})",
    "rsqrt": "(1 / np.sqrt({0})).astype({0}.dtype)",
    "pow": "np.power({0}, {1})",
    "fabs": "np.abs({0})",
    "floor": "np.floor({0})",
    "ceil": "np.ceil({0})",
    "rint": "np.rint({0})",
    "trunc": "np.trunc({0})",
    "round": "np.copysign(np.floor(np.abs({0}) + {0}.dtype.type(0.5)), {0})",
    "fdivide": "{0} / {1}",
    "fmod": "np.fmod({0}, {1})",
    "fmax": "np.fmax({0}, {1})",
    "fmin": "np.fmin({0}, {1})",
    "sin": "np.sin({0})",
    "cos": "np.cos({0})",
    "tan": "np.tan({0})",
    "atan": "np.arctan({0})",
    "atan2": "np.arctan2({0}, {1})",
    "sinh": "np.sinh({0})",
    "cosh": "np.cosh({0})",
    "erf": "error_function({0})",
    "isnanf": "np.isnan({0}).astype(np.int32)",
    "isnand": "np.isnan({0}).astype(np.int32)",
    "isinff": "np.isinf({0}).astype(np.int32)",
    "isinfd": "np.isinf({0}).astype(np.int32)",
}


LOWERINGS: dict[str, Lowering] = {
    # Integers
    "arith.constant": constant,
    "ub.poison": poison,
    "arith.addi": linear("+", "np.add", "^"),
    "arith.subi": linear("-", "np.subtract", "^"),
    "arith.muli": linear("*", "np.multiply", "&"),
    "arith.divsi": elementwise("divide({0}, {1})"),
    "arith.divui": elementwise("divide_unsigned({0}, {1})"),
    "arith.remsi": elementwise("np.fmod({0}, {1})"),
    "arith.remui": elementwise("remainder_unsigned({0}, {1})"),
    "arith.floordivsi": elementwise("divide_floor({0}, {1})"),
    "arith.ceildivsi": elementwise("divide_ceil({0}, {1})"),
    "arith.andi": elementwise("{0} & {1}"),
    "arith.ori": elementwise("{0} | {1}"),
    "arith.xori": elementwise("{0} ^ {1}"),
    "arith.shli": elementwise("{0} << {1}"),
    "arith.shrsi": elementwise("{0} >> {1}"),
    "arith.shrui": elementwise("shift_right_unsigned({0}, {1})"),
    "arith.maxsi": elementwise("np.maximum({0}, {1})"),
    "arith.minsi": elementwise("np.minimum({0}, {1})"),
    "arith.maxui": elementwise("maximum_unsigned({0}, {1})"),
    "arith.minui": elementwise("minimum_unsigned({0}, {1})"),
    "arith.cmpi": compare_integers,
    "math.absi": elementwise("np.abs({0})"),
    "tt.mulhiui": elementwise("multiply_high_unsigned({0}, {1})"),
    # Floats
    "arith.addf": elementwise("{0} + {1}"),
    "arith.subf": elementwise("{0} - {1}"),
    "arith.mulf": elementwise("{0} * {1}"),
    "arith.divf": elementwise("{0} / {1}"),
    "arith.remf": elementwise("np.fmod({0}, {1})"),
    "arith.negf": elementwise("-{0}", rounds=False),
    "arith.maxnumf": elementwise("np.fmax({0}, {1})", rounds=False),
    "arith.minnumf": elementwise("np.fmin({0}, {1})", rounds=False),
    "arith.maximumf": elementwise("np.maximum({0}, {1})", rounds=False),
    "arith.minimumf": elementwise("np.minimum({0}, {1})", rounds=False),
    "arith.cmpf": compare_floats,
    "math.exp": elementwise("np.exp({0})"),
    "math.exp2": elementwise("np.exp2({0})"),
    "math.log": elementwise("np.log({0})"),
    "math.log2": elementwise("np.log2({0})"),
    "math.sqrt": elementwise("np.sqrt({0})"),
    "math.rsqrt": elementwise("(1 / np.sqrt({0})).astype({0}.dtype)"),
    "math.sin": elementwise("np.sin({0})"),
    "math.cos": elementwise("np.cos({0})"),
    "math.tanh": elementwise("np.tanh({0})"),
    "math.erf": elementwise("error_function({0})"),
    "math.absf": elementwise("np.abs({0})", rounds=False),
    "math.floor": elementwise("np.floor({0})"),
    "math.ceil": elementwise("np.ceil({0})"),
    "math.fma": elementwise("fused_multiply_add({0}, {1}, {2})"),
    "tt.precise_sqrt": elementwise("np.sqrt({0})"),
    "tt.precise_divf": elementwise("{0} / {1}"),
    "tt.clampf": clamp,
    "tt.extern_elementwise": external,
    "tt.elementwise_inline_asm": inline_assembly,
    # Conversions
    "arith.extsi": extend_signed,
    "arith.extui": convert,
    "arith.trunci": convert,
    "arith.extf": convert,
    "arith.truncf": convert,
    "arith.sitofp": convert,
    "arith.uitofp": convert,
    "arith.index_cast": convert,
    "tt.fp_to_fp": convert,
    "arith.fptosi": to_integer,
    "arith.fptoui": to_integer,
    "arith.bitcast": bitcast,
    "tt.bitcast": bitcast,
    "arith.select": select,
    # Shapes
    "tt.make_range": make_range,
    "tt.splat": shaping(splat),
    "tt.unsplat": shaping(lambda i, source: ".reshape(-1)"),
    "tt.broadcast": broadcast,
    "tt.expand_dims": shaping(expand_dims),
    "tt.trans": shaping(transpose),
    "tt.reshape": shaping(reshaped),
    "tt.join": elementwise("join({0}, {1})", rounds=False),
    "tt.split": split_last,
    "tt.cat": concatenated,
    "tt.gather": gathered,
    "tt.histogram": histogram,
    # Memory
    "tt.addptr": add_pointer,
    "tt.ptr_to_int": pointer_to_integer,
    "tt.int_to_ptr": integer_to_pointer,
    "tt.load": load,
    "tt.store": store,
    "tt.atomic_rmw": atomic_rmw,
    "tt.atomic_cas": atomic_cas,
    # Tiles as a whole
    "tt.dot": dot,
    "tt.reduce": reduce,
    "tt.scan": scan,
    # Programs and control
    "tt.get_program_id": program_id,
    "tt.get_num_programs": num_programs,
    "scf.for": for_loop,
    "scf.if": if_else,
    "scf.while": while_loop,
    "tt.call": call,
    "ttg.barrier": barrier,
    "gpu.barrier": barrier,
    "tt.assert": assertion,
    "llvm.intr.assume": assertion,
    "tt.print": device_print,
}


def generate(functions: list[Function]) -> str:
    """Python source of an IR module.

    Raises:
        Unsupported: naming the operation and the kernel's source line.
    """
    return Module(functions, LOWERINGS).source()
