"""What Apple's libraries export of the names that native/ uses, as stubs that a linker reads.

Strict linking then refuses a name that is not listed here; each one is in Apple's documentation,
those of libobjc in clang's (AutomaticReferenceCounting, "Runtime support").
"""

from __future__ import annotations

from pathlib import Path

FRAMEWORKS = {
    "Foundation": ["NSString", "NSError", "NSArray", "NSSet", "NSURL"],
    "Metal": ["MTLCompileOptions", "MTLFunctionConstantValues"],
    "CoreFoundation": [],
    "IOKit": [],
}
_SYMBOLS = {
    "Foundation": [],
    "Metal": ["MTLCreateSystemDefaultDevice"],
    "CoreFoundation": [
        "CFGetTypeID",
        "CFNumberGetTypeID",
        "CFNumberGetValue",
        "CFRelease",
        "__CFConstantStringClassReference",
        "kCFAllocatorDefault",
    ],
    "IOKit": [
        "IOObjectRelease",
        "IORegistryEntryCreateCFProperty",
        "IOServiceGetMatchingService",
        "IOServiceMatching",
        "kIOMainPortDefault",
    ],
}
_OBJC = [
    "objc_alloc",
    "objc_alloc_init",
    "objc_autorelease",
    "objc_autoreleasePoolPop",
    "objc_autoreleasePoolPush",
    "objc_autoreleaseReturnValue",
    "objc_claimAutoreleasedReturnValue",
    "objc_lookUpClass",
    "objc_msgSend",
    "objc_opt_class",
    "objc_opt_respondsToSelector",
    "objc_release",
    "objc_retain",
    "objc_retainAutorelease",
    "objc_retainAutoreleaseReturnValue",
    "objc_retainAutoreleasedReturnValue",
    "objc_retainBlock",
    "objc_storeStrong",
    "objc_unsafeClaimAutoreleasedReturnValue",
    "__objc_empty_cache",
    "__objc_personality_v0",
    "sel_registerName",
    *(f"objc_retain_x{n}" for n in range(29)),
    *(f"objc_release_x{n}" for n in range(29)),
]


def write(folder: Path) -> None:
    """Stubs of the frameworks and of libobjc, where `-F folder` and `-L folder` find them."""
    for name, classes in FRAMEWORKS.items():
        place = f"/System/Library/Frameworks/{name}.framework/Versions/A/{name}"
        target = folder / f"{name}.framework" / f"{name}.tbd"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_stub(place, _SYMBOLS[name], classes))
    (folder / "libobjc.tbd").write_text(_stub("/usr/lib/libobjc.A.dylib", _OBJC, ["NSObject"]))


def _stub(install_name: str, symbols: list[str], classes: list[str]) -> str:
    names = ", ".join(f"_{s}" for s in symbols)
    lines = [
        "--- !tapi-tbd",
        "tbd-version: 4",
        "targets: [ arm64-macos ]",
        f"install-name: '{install_name}'",
        "exports:",
        "  - targets: [ arm64-macos ]",
    ]
    if symbols:
        lines.append(f"    symbols: [ {names} ]")
    if classes:
        lines.append(f"    objc-classes: [ {', '.join(classes)} ]")
    if not symbols and not classes:
        lines.append("    symbols: []")
    return "\n".join([*lines, "...", ""])
