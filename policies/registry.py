"""The registry: classes that a configuration or checkpoint may name, and how to make them.

A name is the dotted path of a class, such as `robot_rl.env.sim.domain.Domain`. The registry only
searches robot_rl's own packages, plug-ins and the folders of `ROBOT_RL_PATH`: see
`policies.places`.

The caller passes the family of a part: the base class or protocol that its class must have. The
family of a nested part is its parameter's annotation. All names are looked up and checked before
any object is made, so a file from elsewhere can name parts but cannot call other code. A function
can make a part only if it is marked with `factory`.

Importing this module does not import the registered classes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from policies.errors import did_you_mean
from policies.places import RegistryError as RegistryError
from policies.places import imported, is_registered

CLASS = "class"
"""Key for the class of a part that its owner makes later, with `build`."""

TARGET = "_target_"
"""Key for the class of a part in a configuration."""

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class _Part(NamedTuple):
    """A part that is looked up and checked but not made yet."""

    name: str
    target: Callable[..., Any]
    signature: inspect.Signature | None  # None for a class of a compiled module
    values: Mapping[str, Any]  # its arguments, with nested parts, also in mappings and lists


def factory(function: Function) -> Function:
    """Let a configuration name this function instead of the class that it returns.

    On a class method, put it below `classmethod`.
    """
    function.makes_part = True  # type: ignore[attr-defined]
    return function


def find(name: object, family: type[T], *others: type[Any]) -> Callable[..., T]:
    """Return the class or factory with a dotted name; it must belong to one of the families.

    A class belongs to a family if it inherits from the base class or has the methods of the
    protocol. A factory belongs to the family of its return annotation.

    Raises:
        RegistryError: It is not in the registry, cannot be imported, or is of another family.
    """
    module_name, dot, attribute = str(name).rpartition(".")
    if not dot:
        raise RegistryError("a class is not named in full", got=name, expected="module.Class")
    module = imported(str(name), module_name)
    target: Any = getattr(module, attribute, None)
    if not _is_ours(target):
        own = [n for n, each in vars(module).items() if n[0] != "_" and _is_ours(each)]
        raise RegistryError(
            f"module {module_name!r} has no class {attribute!r}",
            got=name,
            hint=did_you_mean(attribute, own) or "check the spelling",
        )
    is_factory = not isinstance(target, type) and getattr(target, "makes_part", False)
    kind = _annotation(target, "return") if is_factory else target
    lacking = [_lacking(kind, each) for each in (family, *others)]
    if None not in lacking:
        methods = f" or has its methods, {', '.join(_methods(family))}" * _is_protocol(family)
        raise RegistryError(
            f"{name} is no {family.__name__}",
            got=f"a class without {', '.join(lacking[0])}" if lacking[0] else None,
            expected=f"a class that inherits from {family.__module__}.{family.__qualname__}"
            f"{methods}; or a function with @registry.factory that returns one",
        )
    found: Callable[..., T] = target
    return found


def find_class(name: object, family: type[T]) -> type[T]:
    """As `find`, for classes only."""
    found = find(name, family)
    if isinstance(found, type):
        return found
    raise RegistryError(f"{name} is no class", expected=f"a {family.__name__}")


def name_of(made: type) -> str:
    """Return the name under which `find` finds a class.

    Raises:
        RegistryError: Another class has this name, so a saved part could not be read again.
    """
    name = f"{made.__module__}.{made.__qualname__}"
    if find(name, made) is not made:
        raise RegistryError("another class has this name", got=name)
    return name


def make(config: Mapping[str, Any], family: type[T], **arguments: Any) -> T:
    """Make the part of a family that a configuration describes.

    `config["_target_"]` names its class; the other keys are its arguments. The configuration is a
    dict or a Hydra node. Nested mappings with a `_target_` are parts too, and are made first.
    `arguments` override those of the configuration.

    Raises:
        RegistryError: No `_target_`, unknown or missing arguments, or as `find`. No object was
            made then.
    """
    part = _looked_up(_described(config), (family,), arguments)
    _check_complete(part)
    made: T = _made(part)
    return made


def try_parts(config: Mapping[str, Any], family: type[Any]) -> None:
    """Make only the nested parts of a part, so that they check their arguments.

    Raises:
        RobotRLError: As `make`, or an error of a nested part.
    """
    for inner in _inner(_looked_up(_described(config), (family,), {}).values):
        _check_complete(inner)
        _made(inner)


def build(family: type[T], config: Mapping[str, Any], **arguments: Any) -> T:
    """Make a part of the class `config["class"]`, such as a denoiser; its owner adds arguments.

    Raises:
        RegistryError: As `make`.
    """
    options = {**config, TARGET: config.get(CLASS)}
    options.pop(CLASS, None)
    return make(options, family, **arguments)


def takes(config: Mapping[str, Any], family: type[Any], argument: str) -> bool:
    """Whether the class of a part of this family has a parameter of this name."""
    return argument in inspect.signature(find(config.get(TARGET), family)).parameters


def check_arguments(config: Mapping[str, Any], family: type[Any]) -> None:
    """Check what `make` checks, except missing arguments, without making the part.

    Raises:
        RegistryError: As `make`.
    """
    _looked_up(_described(config), (family,), {})


def _is_ours(target: Any) -> bool:
    """Whether registry code defines it, rather than only imports it (`my_task.Popen`)."""
    return callable(target) and is_registered(str(getattr(target, "__module__", "")))


def _plain(config: Any) -> Any:
    """Turn a Hydra node into dicts and lists, without importing Hydra."""
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(config):
        return omegaconf.OmegaConf.to_container(config, resolve=True)
    return dict(config) if isinstance(config, Mapping) else config


def _described(config: Mapping[str, Any]) -> dict[str, Any]:
    plain = _plain(config)
    if isinstance(plain, dict) and TARGET in plain:
        return plain
    raise RegistryError(
        "a configuration cannot be made into an object",
        got=sorted(plain) if isinstance(plain, dict) else plain,
        expected=f"a key `{TARGET}` with the dotted name of a class",
    )


def _looked_up(
    config: Mapping[str, Any], families: Sequence[type], arguments: Mapping[str, Any]
) -> _Part:
    """Look up a part of one of the families and its nested parts, without making them."""
    name, values = str(config[TARGET]), {**config, **arguments}
    del values[TARGET]
    target: Callable[..., Any] = find(name, *families)
    signature = _checked_signature(name, target, values)
    for key in config.keys() - arguments.keys() - {TARGET}:
        if _has_parts(values[key]):
            within = list(_families(_annotation(target, key)))
            values[key] = _parts_in(values[key], within, f"{key} of {name}")
    return _Part(name, target, signature, values)


def _has_parts(value: Any) -> bool:
    if isinstance(value, Mapping):
        return TARGET in value or any(map(_has_parts, value.values()))
    return isinstance(value, list) and any(map(_has_parts, value))


def _parts_in(value: Any, families: Sequence[type], where: str) -> Any:
    """Look up the parts in a value, also inside mappings and lists."""
    if isinstance(value, list):
        return [_parts_in(item, families, where) for item in value]
    if not isinstance(value, Mapping):
        return value
    if TARGET not in value:
        return {name: _parts_in(item, families, where) for name, item in value.items()}
    if families:
        return _looked_up(value, families, {})
    raise RegistryError(
        f"{where} can be no part",
        got=f"{TARGET}: {value[TARGET]}",
        expected="a value; or a parameter whose annotation names the class of a part",
        hint="in a class of your own, import the class of the annotation at the top of the module",
    )


def _families(annotation: Any) -> Iterator[type]:
    """Yield the registry classes in an annotation such as `Sequence[Camera] | None`."""
    if isinstance(annotation, type) and _is_ours(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _families(argument)


def _annotation(target: Any, parameter: str) -> Any:
    """Return the annotation of a parameter or of `return`; None if unknown at run time."""
    for kind in target.__mro__ if isinstance(target, type) else (target,):
        own = getattr(kind, "__dict__", {})
        # A dataclass's fields are its arguments; some may be defined in another module.
        place = kind if "__dataclass_fields__" in own else own.get("__init__", kind)
        annotations = getattr(place, "__annotations__", {})
        if parameter in annotations:
            alone = SimpleNamespace(__annotations__={parameter: annotations[parameter]})
            with suppress(NameError, TypeError):
                return get_type_hints(alone, vars(sys.modules[place.__module__]))[parameter]
            return None
    return None


def _is_protocol(family: type) -> bool:
    return bool(getattr(family, "_is_protocol", False))


def _methods(protocol: type) -> list[str]:
    members = {name: each for kind in protocol.__mro__ for name, each in vars(kind).items()}
    return sorted(n for n, each in members.items() if n[0] != "_" and inspect.isfunction(each))


def _lacking(kind: Any, family: type) -> list[str] | None:
    """Return the protocol methods that a class lacks; None if it belongs to the family."""
    if not isinstance(kind, type):
        return []
    if not _is_protocol(family):
        return None if issubclass(kind, family) else []
    return [name for name in _methods(family) if not hasattr(kind, name)] or None


def _check_complete(part: _Part) -> None:
    """Check that a part can be made: no abstract method, no missing argument."""
    name, target, signature, values = part
    if missing := sorted(getattr(target, "__abstractmethods__", ())):
        raise RegistryError(
            f"the class {name} is not complete", hint=f"give it a method {', '.join(missing)}"
        )
    if signature is not None:
        try:
            signature.bind(**values)
        except TypeError as error:
            raise RegistryError(
                f"{name}: {error}",
                got=sorted(values),
                expected=list(signature.parameters),
                hint="add it to its config",
            ) from error
    for inner in _inner(values):
        _check_complete(inner)


def _inner(value: Any) -> Iterator[_Part]:
    if isinstance(value, _Part):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _inner(item)


def _made(value: Any) -> Any:
    if isinstance(value, _Part):
        return value.target(**{name: _made(item) for name, item in value.values.items()})
    if not any(True for _ in _inner(value)):
        return value
    if isinstance(value, list):
        return [_made(item) for item in value]
    return {name: _made(item) for name, item in value.items()}


def _checked_signature(
    name: str, target: Callable[..., Any], values: Mapping[str, Any]
) -> inspect.Signature | None:
    """Return the signature, None if unknown; `RegistryError` for an unknown argument."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    parameters = signature.parameters.values()
    accepted = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if open_ended else [key for key in values if key not in accepted]
    if unknown:
        raise RegistryError(
            f"{name} takes no argument {unknown[0]!r}",
            got=sorted(values),
            expected=accepted,
            hint=did_you_mean(unknown[0], accepted),
        )
    return signature
