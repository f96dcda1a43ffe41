"""``ftd bench``: measure a model that is on this machine, without the daemon."""

import argparse
from dataclasses import asdict

from ftd import config
from ftd.cli import output
from ftd.daemon import modelinfo
from ftd.engine import bench
from ftd.names import parse_name
from ftd.registry.store import Store


def run(options: argparse.Namespace) -> int:
    """Print what ``ftd.engine.bench`` measures of ``options.model``."""
    info = modelinfo.read_model(
        Store(config.load().registry.models_dir), parse_name(options.model), tokenizer=False
    )
    result = bench.run(
        info.config_path,
        info.blob_paths,
        prompt_tokens=options.prompt_tokens,
        decode_tokens=options.decode_tokens,
        num_threads=options.threads,
        precision=options.precision,
    )
    if options.json:
        output.print_json(asdict(result))
    else:
        print(bench.format_table(result))
    return 0
