"""The annotated tree of files of a report: folders with sums, files with their figures."""

from __future__ import annotations

from typing import Any, Final

__all__ = ("file_tree",)

#: Nodes of a tree. Past it, a folder says how many of its entries are left out.
MAX_NODES: Final = 1000
#: The figures of a file, and how a folder combines those of its entries.
SUMS: Final = ("files", "bytes", "nloc", "functions", "commits", "debt", "hours")
SHOWN: Final = (*SUMS[1:], "language", "max_cyclomatic", "maintainability_index", "hotspot_score")


def file_tree(files: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the tree of files. Folders and files with the highest scores come first."""
    root: dict[str, Any] = {"name": name, "children": {}}
    for path, record in files.items():
        node = root
        for part in path.split("/")[:-1]:
            folder: dict[str, Any] = {"name": part, "children": {}}
            node = node["children"].setdefault(part + "/", folder)
        figures = {key: record[key] for key in SHOWN if key in record}
        name_of_file = path.rpartition("/")[2]
        node["children"][name_of_file] = {"name": name_of_file} | figures
    _sum(root)
    return {
        "root": _limit(root),
        "total_files": len(files),
        "total_size_bytes": sum(each["bytes"] for each in files.values()),
    }


def _sum(root: dict[str, Any]) -> None:
    """Add the sums of folders, the innermost first, without recursion: paths may be deep."""
    order = [root]
    for node in order:
        order += [each for each in node["children"].values() if "children" in each]
    for node in reversed(order):
        for child in node["children"].values():
            counts = child if "children" in child else {**child, "files": 1}
            for key in SUMS:
                if key in counts:
                    node[key] = round(node.get(key, 0) + counts[key], 2)
            for key in ("max_cyclomatic", "hotspot_score"):
                if key in child:
                    node[key] = max(node.get(key, 0), child[key])


def _order(node: dict[str, Any]) -> tuple[float, int, str]:
    return -node.get("hotspot_score", 0.0), -node.get("nloc", 0), node["name"]


def _limit(root: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with at most `MAX_NODES` nodes, the upper levels first."""
    result = {**root, "children": []}
    left = MAX_NODES
    level = [(result, root["children"])]
    while level:
        following = []
        for target, children in level:
            ordered = sorted(
                children.values(),
                key=lambda each: (
                    -each.get("hotspot_score", 0),
                    -each.get("nloc", 0),
                    each["name"],
                ),
            )
            for each in ordered[:left]:
                shown = {**each}
                if "children" in each:
                    shown["children"] = []
                    following.append((shown, each["children"]))
                target["children"].append(shown)
            if len(ordered) > left:
                target["omitted"] = len(ordered) - left
            left -= min(left, len(ordered))
        level = following
    return result
