"""`vllm serve`, as `python -m tests.engines.vllm_serve serve ...`: the command asks for the version of a package named
vllm before it does anything, and the build for CPUs has another name."""


def main() -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    command = ServeSubcommand()
    parser = FlexibleArgumentParser()
    command.subparser_init(parser.add_subparsers(required=True))
    arguments = parser.parse_args()
    command.validate(arguments)
    command.cmd(arguments)


if __name__ == "__main__":
    main()
