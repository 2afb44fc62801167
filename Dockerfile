# One image for every part: `chatmill gateway`, `chatmill worker` and `chatmill migrate` are its commands.
# docs/deployment.md tells how it is run, and how an image of your own with your own tools builds on it.
#
# There is no HEALTHCHECK here: a gateway, a worker and a migration are healthy in different ways. docker-compose.yml
# has one for each.

FROM python:3.13-slim AS packages
COPY requirements.lock /
RUN pip install --no-cache-dir --root-user-action=ignore --prefix=/packages --require-hashes -r /requirements.lock

FROM python:3.13-slim
COPY --from=packages /packages /usr/local

WORKDIR /opt/chatmill
# pyproject.toml holds the version.
COPY pyproject.toml ./
COPY cli cli
COPY demo demo
COPY gateway gateway
COPY graph graph
COPY handlers handlers
COPY migrations migrations
COPY schemas schemas
COPY storage storage
COPY workers workers
# -P: a file in the working directory must not be taken for one of ours.
RUN printf '#!/bin/sh\nexec python -P -m cli.main "$@"\n' >/usr/local/bin/chatmill \
    && chmod 755 /usr/local/bin/chatmill \
    && python -m compileall -q . \
    && useradd --system --uid 10001 --no-create-home chatmill \
    && install --directory --owner=chatmill --mode=700 /var/lib/chatmill

ENV PYTHONPATH=/opt/chatmill \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    CHATMILL_DATA_DIR=/var/lib/chatmill

# Where chatmill.toml and modules of your own belong.
WORKDIR /app
USER 10001
ENTRYPOINT ["chatmill"]
CMD ["--help"]
