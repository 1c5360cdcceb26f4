# One image with all programs of Clew.
#
#   docker build -t clew .                                     builds the programs in the image
#   make build && docker build --build-arg BINARIES=prebuilt . takes the programs from bin/
#
# The runtime image needs git 2.39 or newer with http-backend, a shell, CA
# certificates and an ssh client. Pods run as any user, and ssh refuses to run as a
# user without a name: libnss-unknown gives them one. PACKAGES lists what the image
# lacks; use --build-arg PACKAGES= for an image that lacks nothing, or has no apt-get.
ARG BUILDER_IMAGE=docker.io/library/golang:1.26-bookworm
ARG RUNTIME_IMAGE=docker.io/library/debian:bookworm-slim
ARG BINARIES=build

FROM ${BUILDER_IMAGE} AS binaries-build
ARG VERSION=dev
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY api api
COPY cmd cmd
COPY internal internal
ENV CGO_ENABLED=0
RUN mkdir -p /out && \
    for program in manager server gitstore kubectl-clew; do \
      go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o "/out/$program" "./cmd/$program" || exit 1; \
    done && \
    go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/clew-daemon ./cmd/daemon

FROM ${RUNTIME_IMAGE} AS binaries-prebuilt
COPY bin/manager bin/server bin/gitstore bin/clew-daemon bin/kubectl-clew /out/

FROM binaries-${BINARIES} AS binaries

FROM ${RUNTIME_IMAGE}
ARG PACKAGES="git ca-certificates openssh-client libnss-unknown"
RUN if [ -n "${PACKAGES}" ]; then \
      apt-get update && \
      apt-get install --yes --no-install-recommends ${PACKAGES} && \
      rm -rf /var/lib/apt/lists/*; \
    fi && \
    git --version && \
    test -x "$(git --exec-path)/git-http-backend" && \
    echo 'clew:x:65532:65532:Clew:/tmp:/usr/sbin/nologin' >>/etc/passwd && \
    echo 'clew:x:65532:' >>/etc/group
COPY --from=binaries /out/ /usr/local/bin/
USER 65532:65532
WORKDIR /
CMD ["manager", "--help"]
