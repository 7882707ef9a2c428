"""Recipe of Spack for margo: put it into `packages/margo_rs/package.py` of a repository of yours.

The name is not `margo`, since the C library of that name is `mochi-margo` there.
"""

from spack.package import *
from spack_repo.builtin.build_systems.cargo import CargoPackage


class MargoRs(CargoPackage):
    """A thread-per-core RPC runtime for HPC and data services: the program margo."""

    # A checkout: `spack develop --path DIR margo-rs@=main`.
    version("main")

    license("MIT OR Apache-2.0")

    variant("ofi", default=False, description="Fabrics through libfabric")
    variant("ucx", default=False, description="InfiniBand, RoCE and others through UCX")

    depends_on("rust@1.90:", type="build")
    # Opened at run time, and not needed to build.
    depends_on("libfabric", type="run", when="+ofi")
    depends_on("ucx@1.13:", type="run", when="+ucx")

    # `cargo install` of the program alone; everything else in the workspace is libraries.
    build_directory = "cli"

    def setup_run_environment(self, env):
        for variant, library in (("+ofi", "libfabric"), ("+ucx", "ucx")):
            if self.spec.satisfies(variant):
                env.prepend_path("LD_LIBRARY_PATH", self.spec[library].prefix.lib)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.margo)("info")
