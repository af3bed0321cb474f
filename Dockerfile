# docker build -t attnserve .
# docker run --rm -p 50051:50051 -p 9464:9464 attnserve
FROM debian:trixie-slim AS build
COPY deploy/packages.sh /src/deploy/packages.sh
RUN /src/deploy/packages.sh build
WORKDIR /src
COPY CMakeLists.txt CMakePresets.json ./
COPY cmake cmake
COPY proto proto
COPY lib lib
COPY client client
COPY server server
COPY deploy deploy
RUN cmake --preset release -DATTNSERVE_BUILD_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/opt/attnserve \
 && cmake --build --preset release \
 && cmake --install build/release --component runtime --strip
# The packages that hold the shared libraries both programs need, and nothing else.
RUN ldd /opt/attnserve/bin/* | awk '$3 ~ /^\// {print $3}' | sort -u \
  | xargs -n1 realpath | xargs dpkg-query -S 2>/dev/null | cut -d: -f1 | sort -u > /packages.txt \
 && test -s /packages.txt

FROM debian:trixie-slim
COPY --from=build /packages.txt /tmp/packages.txt
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends \
      $(cat /tmp/packages.txt) \
 && rm -rf /var/lib/apt/lists/* /tmp/packages.txt
COPY --from=build /opt/attnserve /opt/attnserve
ENV PATH=/opt/attnserve/bin:$PATH \
    ATTNSERVE_LISTEN=0.0.0.0:50051 \
    ATTNSERVE_HTTP=0.0.0.0:9464
USER 65532:65532
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["attnctl", "info", "--timeout", "2s"]
ENTRYPOINT ["attnserve"]
