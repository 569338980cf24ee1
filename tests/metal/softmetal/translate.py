"""Turns preprocessed Metal into C++: what is left is attributes, kernels and threadgroup variables.

Everything else about the language is headers. The text is edited in place and keeps its lines, so
that the compiler's messages and line tables speak of the shader. Three kinds of declaration become
macros (softmetal/kernel.hpp), and each kernel is followed by its list of bindings, each
instantiation by its registration.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import MetalError
from .references import references, same_without_spaces
from .tokens import Tokens

POSITIONS = {
    "thread_position_in_grid",
    "threadgroup_position_in_grid",
    "thread_position_in_threadgroup",
    "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup",
    "threadgroups_per_grid",
    "threads_per_grid",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "threads_per_simdgroup",
}
_BEFORE_CONSTANT = {";", "}", "{", "", "static"}
_KERNEL_ATTRIBUTES = {"kernel", "host_name", "max_total_threads_per_threadgroup"}
_PARAMETER_ATTRIBUTES = {"function_constant", "maybe_unused"}


@dataclass
class Attribute:
    name: str
    argument: str


@dataclass
class Parameter:
    name: str
    label: str  # buffer(3), or the position
    binding: str  # C++ type, softmetal/kernel.hpp


@dataclass
class Kernel:
    name: str
    parameters: list[Parameter]
    template: bool
    host_name: str
    body: tuple[int, int]  # first token after '{', and the '}'
    place: str

    @property
    def bindings(self) -> str:
        return f"sm_bindings_{self.name}"


@dataclass
class Instance:
    host_name: str
    expression: str  # pamx::k<half, 128>
    kernel: str  # k
    end: int  # its ';'
    place: str


@dataclass
class Translation:
    """A shader as C++, but for what a mode (run, check, CUDA) adds to it.

    Attributes:
        kernels: by name, without namespaces.
        instances: what a program offers by name, in the order of the source.
        constants: the function constants that each kernel cannot do without.
    """

    tokens: Tokens
    edits: list[tuple[int, int, str]]
    kernels: dict[str, Kernel]
    instances: list[Instance]
    constants: dict[str, list[str]]

    def kernel_of(self, instance: Instance) -> Kernel:
        return self.kernels[instance.kernel]

    def render(
        self,
        after_kernel: Callable[[Kernel], str] = lambda _: "",
        after_instance: Callable[[int, Instance], str] = lambda _n, _i: "",
        erase_spaces: bool = True,
    ) -> str:
        """The text, with what the mode wants said behind each kernel and each instance."""
        edits = list(self.edits)
        for first, end in same_without_spaces(self.tokens) if erase_spaces else ():
            a, b = self.tokens.spans[first][0], self.tokens.spans[end - 1][1]
            edits = [e for e in edits if not a <= e[0] < b]
            edits.append((a, b, "\n" * self.tokens.text.count("\n", a, b)))
        for kernel in self.kernels.values():
            at = self.tokens.spans[kernel.body[1]][1]
            edits.append((at, at, after_kernel(kernel)))
        for n, instance in enumerate(self.instances):
            at = self.tokens.spans[instance.end][1]
            edits.append((at, at, after_instance(n, instance)))
        pieces, position = [], 0
        for a, b, new in sorted(edits, key=lambda edit: edit[:2]):
            pieces += [self.tokens.text[position:a], new]
            position = b
        return "".join(pieces) + self.tokens.text[position:]


@dataclass
class Translator:
    tokens: Tokens
    edits: list[tuple[int, int, str]] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    instances: list[Instance] = field(default_factory=list)
    function_constants: list[str] = field(default_factory=list)

    def replace(self, first: int, end: int, text: str) -> None:
        """Replaces tokens first..end-1; the lines that they spanned stay."""
        a, b = self.tokens.spans[first][0], self.tokens.spans[end - 1][1]
        self.edits.append((a, b, text + "\n" * self.tokens.text.count("\n", a, b)))

    def fail(self, i: int, message: str) -> MetalError:
        return MetalError(f"{self.tokens.place(i)}: error: {message}")

    # ---- attributes ---------------------------------------------------------------------------

    def attributes(self, first: int, end: int) -> list[Attribute]:
        """Those between two tokens."""
        t, found, i = self.tokens, [], first
        while i < end:
            if t.word(i) != "[[":
                i += 1
                continue
            stop = t.attribute_end(i)
            for a, b in t.split(i + 1, stop - 2):
                argument = t.slice(a + 2, t.matching(a + 1)) if t.word(a + 1) == "(" else ""
                found.append(Attribute(t.word(a), argument))
                if b > a + 1 and t.word(a + 1) != "(":
                    raise self.fail(a, f"attribute '{t.slice(a, b)}' is not understood")
            i = stop
        return found

    def plain(self, first: int, end: int) -> list[int]:
        """Tokens that stand in no attribute."""
        indices, i = [], first
        while i < end:
            if self.tokens.word(i) == "[[":
                i = self.tokens.attribute_end(i)
            else:
                indices.append(i)
                i += 1
        return indices

    def is_position(self, i: int) -> bool:
        """Whether the attribute at i binds a parameter: of a plain function, that means nothing."""
        names = {a.name for a in self.attributes(i, self.tokens.attribute_end(i))}
        return bool(names & (POSITIONS | {"buffer", "threadgroup"}))

    def strip_attributes(self, first: int, end: int) -> None:
        i = first
        while i < end:
            if self.tokens.word(i) == "[[":
                stop = self.tokens.attribute_end(i)
                self.replace(i, stop, "")
                i = stop
            else:
                i += 1

    # ---- kernels ------------------------------------------------------------------------------

    def parameter(self, kernel: str, first: int, end: int) -> Parameter:
        attributes = self.attributes(first, end)
        words = [self.tokens.word(i) for i in self.plain(first, end)]
        name = words[-1] if words else "?"
        needed = next((a.argument for a in attributes if a.name == "function_constant"), None)
        label = binding = ""
        for a in attributes:
            if a.name == "buffer":
                label = f"buffer({a.argument})"
                binding = f"Buffer<int({a.argument})>"
                if needed:
                    binding = f"OptionalBuffer<int({a.argument}), &{needed}>"
                if not {"device", "constant"} & set(words) or not {"*", "&"} & set(words):
                    raise self.fail(
                        first, f"'{name}' of {kernel} must be a device or constant pointer"
                    )
            elif a.name == "threadgroup":
                label = f"threadgroup({a.argument})"
                binding = f"Threadgroup<int({a.argument})>"
                if "threadgroup" not in words:
                    raise self.fail(first, f"'{name}' of {kernel} must be a threadgroup pointer")
            elif a.name in POSITIONS:
                label, binding = a.name, f"At<::softmetal::{a.name}>"
            elif a.name not in _PARAMETER_ATTRIBUTES:
                raise self.fail(first, f"unknown attribute '{a.name}' of '{name}' of {kernel}")
        if not binding:
            raise self.fail(first, f"'{name}' of {kernel} has no attribute")
        self.strip_attributes(first, end)
        return Parameter(name, label, f"::softmetal::{binding}")

    def kernel(self, i: int) -> int:
        """The definition whose `kernel` is at i; returns the token to go on from."""
        t = self.tokens
        start, host_name = i, ""
        bracketed = t.word(i - 1) in ("[[", ",")
        if bracketed:
            while t.word(start) != "[[":
                start -= 1
        j = start
        while t.word(j) == "[[" or t.word(j) == "kernel":
            stop = t.attribute_end(j) if t.word(j) == "[[" else j + 1
            for a in self.attributes(j, stop):
                if a.name not in _KERNEL_ATTRIBUTES:
                    raise self.fail(j, f"unknown attribute '{a.name}' of a kernel")
                if a.name == "host_name":
                    host_name = a.argument.strip('"')
            self.replace(j, stop, "")
            j = stop
        if t.word(j) != "void":
            raise self.fail(i, "a kernel returns void")
        name, opening = t.word(j + 1), j + 2
        closing = t.matching(opening)
        parameters, seen = [], dict[str, str]()
        for first, end in t.split(opening + 1, closing):
            p = self.parameter(name, first, end)
            if p.label in seen:
                raise self.fail(
                    first, f"'{seen[p.label]}' and '{p.name}' of {name} are both {p.label}"
                )
            seen[p.label] = p.name
            parameters.append(p)
        if t.word(closing + 1) != "{":
            raise self.fail(i, f"kernel {name} is declared without a body")
        end = t.matching(closing + 1, "{", "}")
        template = t.word(start - 1) == ">"
        if name in self.kernels:
            raise self.fail(i, f"kernel {name} is already defined at {self.kernels[name].place}")
        kernel = Kernel(
            name, parameters, template, host_name or name, (closing + 2, end), t.place(i)
        )
        self.kernels[name] = kernel
        if not template:
            self.instances.append(Instance(kernel.host_name, name, name, end, kernel.place))
        return closing + 1

    def instantiation(self, i: int) -> int:
        """`template [[host_name("x")]] [[kernel]] ...;` at i, in either of its forms."""
        t = self.tokens
        end = t.statement_end(i)
        host = [a.argument for a in self.attributes(i, end) if a.name == "host_name"]
        plain = self.plain(i + 1, end)
        if not plain:
            return end
        if host:
            first = plain[0]
            if t.word(first) == "decltype":
                expression = t.slice(first + 2, t.matching(first + 1))
            else:
                a = plain[1]
                b = a
                while t.word(b) not in ("(", ";"):
                    b = t.matching(b, "<", ">") + 1 if t.word(b) == "<" else b + 1
                expression = t.slice(a, b)
            names = "".join(re.findall(r'"([^"]*)"', host[0]))
            base = expression.split("<")[0].split("::")[-1].strip()
            self.instances.append(Instance(names, expression, base, end, t.place(i)))
        self.strip_attributes(i, end)
        return end

    # ---- variables ----------------------------------------------------------------------------

    def constant(self, i: int) -> int:
        """A program-scope `constant`: a function constant, computed from some, or plain."""
        t = self.tokens
        end = i
        while t.word(end) not in (";", "=", "(", ")", ",", "{", ""):
            end = t.attribute_end(end) if t.word(end) == "[[" else end + 1
        attributes = self.attributes(i, end)
        index = next((a.argument for a in attributes if a.name == "function_constant"), None)
        words = self.plain(i, end)
        name, type_ = t.word(words[-1]), " ".join(t.word(k) for k in words[1:-1])
        if index is not None and t.word(end) == ";":
            self.function_constants.append(name)
            self.replace(i, end + 1, f"SM_FUNCTION_CONSTANT({index}, {name}, {type_})")
            return end + 1
        if t.word(end) == "=" and type_:
            stop = t.statement_end(end)
            value = t.slice(end + 1, stop)
            if set(re.findall(r"\w+", value)) & set(self.function_constants):
                self.function_constants.append(name)
                self.replace(i, stop + 1, f"SM_DERIVED_CONSTANT({name}, {type_}, {value})")
            return stop
        return i + 1

    def threadgroup_variable(self, i: int) -> int:
        """A statement-level `threadgroup T x[n];`, which is not a pointer or reference."""
        t = self.tokens
        j, depth = i, 0
        while depth or t.word(j) not in (";", "=", "(", "*", "&", ",", "{", ""):
            depth += {"[": 1, "<": 1, "]": -1, ">": -1}.get(t.word(j), 0)
            j += 1
        if t.word(j) in ("=", "{"):
            raise self.fail(i, "a threadgroup variable has no initialiser")
        if t.word(j) == ",":
            raise self.fail(i, "a threadgroup variable stands alone in its declaration here")
        if t.word(j) != ";":
            return i + 1
        if not any(k.body[0] <= i < k.body[1] for k in self.kernels.values()):
            raise self.fail(i, "a threadgroup variable is declared in a kernel, nowhere else")
        bracket = i
        depth = 0
        while bracket < j and (depth or t.word(bracket) != "["):
            depth += {"<": 1, ">": -1}.get(t.word(bracket), 0)
            bracket += 1
        name, type_ = t.word(bracket - 1), t.slice(i + 1, bracket - 1)
        dims = t.slice(bracket, j)
        self.replace(i, j + 1, f"SM_THREADGROUP_VARIABLE({dims}, {name}, {type_})")
        return j + 1

    # ---- the whole file -----------------------------------------------------------------------

    def walk(self) -> None:
        t, i = self.tokens, 0
        # Program scope: every open brace is a namespace's.
        scopes: list[bool] = []
        while i < len(t):
            word = t.word(i)
            if word == "{":
                scopes.append(_opens_namespace(t, i))
            elif word == "}" and scopes:
                scopes.pop()
            elif word == "[[" and self.is_position(i):
                stop = t.attribute_end(i)
                self.replace(i, stop, "")
                i = stop
                continue
            elif word == "template" and t.word(i + 1) != "<":
                i = self.instantiation(i)
                continue
            elif word == "kernel" and (
                t.word(i - 1) in ("[[", ",") or t.word(i - 1) in (";", "}", ">", "]", "{", "")
            ):
                i = self.kernel(i)
                continue
            elif (
                word == "constant"
                and all(scopes)
                and t.word(i - 1) in (";", "}", "{", "", "static")
            ):
                i = self.constant(i)
                continue
            elif word == "threadgroup" and t.word(i - 1) in (";", "{", "}", ")"):
                i = self.threadgroup_variable(i)
                continue
            i += 1


def _opens_namespace(t: Tokens, i: int) -> bool:
    j = i - 1
    while t.word(j) == "::" or re.fullmatch(r"\w+", t.word(j)):
        if t.word(j) in ("namespace", "extern"):
            return True
        j -= 1
    return t.word(i - 1).startswith('"') and t.word(i - 2) == "extern"


def needed_constants(translator: Translator) -> dict[str, list[str]]:
    """The function constants that a kernel names, itself or in what it calls.

    Metal wants a value for each of them, unless the shader asks whether there is one.
    """
    words = translator.tokens.words
    asked = {
        words[i + 2] for i in range(len(words) - 2) if words[i] == "is_function_constant_defined"
    }
    named = references(translator.tokens)
    needed = {}
    for kernel in translator.kernels:
        found, queue = {kernel}, [kernel]
        while queue:
            for name in named.get(queue.pop(), ()):
                if name in named and name not in found:
                    found.add(name)
                    queue.append(name)
        needed[kernel] = [c for c in translator.function_constants if c in found - asked]
    return needed


def translate(text: str) -> Translation:
    """Preprocessed Metal to C++.

    Raises:
        MetalError: for what the Metal compiler would refuse about kernels, attributes and
            threadgroup variables.
    """
    translator = Translator(Tokens(text))
    translator.walk()
    constants = needed_constants(translator)
    seen: dict[str, str] = {}
    for instance in translator.instances:
        if instance.kernel not in translator.kernels:
            raise MetalError(
                f"{instance.place}: error: '{instance.host_name}' instantiates "
                f"{instance.kernel}, which is no kernel"
            )
        if instance.host_name in seen:
            raise MetalError(
                f"{instance.place}: error: two kernels are called '{instance.host_name}'; "
                f"the other is at {seen[instance.host_name]}"
            )
        seen[instance.host_name] = instance.place
    return Translation(
        translator.tokens, translator.edits, translator.kernels, translator.instances, constants
    )
