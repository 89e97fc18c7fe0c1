"""Tokens of an identity provider (OpenID Connect), verified with its public keys, which are fetched and kept."""

import asyncio
import logging
import urllib.request
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

import msgspec

from outlive.core.errors import IdentityUnavailable, SettingsError, Unauthenticated
from outlive.core.owners import Oidc
from outlive.http.request import OWNER_NAME
from outlive.ports.clock import Clock
from outlive.ports.storage import Key

log = logging.getLogger("outlive")

ALGORITHMS = ["RS256", "ES256", "EdDSA"]
# Seconds by which the clocks of the provider and of this machine may differ.
LEEWAY = 30.0
# Seconds after which the public keys are fetched again, and between two fetches for a key that is not among them.
FRESH_SECONDS, PAUSE_SECONDS = 3600.0, 5.0
FETCH_SECONDS = 10.0
MAX_DOCUMENT = 1024 * 1024  # bytes
MAX_TOKENS = 10_000  # that are known to be valid


class TokenVerifier:
    """Finds the owner of a token. One that was verified is found in memory until it expires."""

    def __init__(self, settings: Oidc, clock: Clock) -> None:
        try:
            import jwt  # an extra, which a server without [oidc] does not need
        except ImportError as error:
            raise SettingsError("[oidc] needs one package more: pip install 'outlive[oidc]'.") from error
        self._jwt = jwt
        self._settings = settings
        self._clock = clock
        self._verified: OrderedDict[bytes, Key] = OrderedDict()  # by the digest of the token
        self._keys: dict[str | None, Any] = {}  # public ones, by id
        self._fetched_at = -FRESH_SECONDS
        self._fetching = asyncio.Lock()

    async def verify(self, token: str, digest: bytes) -> Key:
        """Return the rights of a token. Raises Unauthenticated or IdentityUnavailable."""
        known = self._verified.get(digest)
        if known is not None and (known.expires_at or 0) > self._clock.now():
            return known
        try:
            public = await self._find_public(self._jwt.get_unverified_header(token).get("kid"))
            claims = self._jwt.decode(
                token,
                public,
                algorithms=ALGORITHMS,
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud"]},
            )
        except self._jwt.ExpiredSignatureError:
            raise Unauthenticated("The token has expired; get a new one.", code="token_expired") from None
        except (self._jwt.InvalidAudienceError, self._jwt.InvalidIssuerError):
            message = "The token is for another audience or from another issuer than [oidc] of the settings names."
            raise Unauthenticated(message, code="token_not_for_this_server") from None
        except self._jwt.PyJWTError as error:
            raise Unauthenticated(f"The token is not valid ({type(error).__name__}).", code="invalid_token") from None
        owner = claims.get(self._settings.owner_claim)
        if not isinstance(owner, str) or not OWNER_NAME.fullmatch(owner):
            claim = f"The token's claim '{self._settings.owner_claim}', which names the owner,"
            raise Unauthenticated(f"{claim} must be 1 to 200 visible ASCII characters.", code="token_without_owner")
        key = self._verified[digest] = Key("", owner, expires_at=float(claims["exp"]) + LEEWAY)
        if len(self._verified) > MAX_TOKENS:
            self._verified.popitem(last=False)
        return key

    async def _find_public(self, key_id: str | None) -> Any:
        """Return the public key of that id; where a token names none, the only one there is."""
        async with self._fetching:
            age = self._clock.monotonic() - self._fetched_at
            if age >= FRESH_SECONDS or (key_id not in self._keys and age >= PAUSE_SECONDS):
                await self._fetch()
        if not self._keys:
            raise IdentityUnavailable
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if key_id not in self._keys:
            raise self._jwt.InvalidKeyError
        return self._keys[key_id]

    async def _fetch(self) -> None:
        """Fetch the public keys. Where that fails, those that are known stay."""
        self._fetched_at = self._clock.monotonic()
        try:
            keys = await asyncio.to_thread(self._load)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, self._jwt.PyJWTError) as error:
            log.warning("the keys of the identity provider cannot be fetched (%s)", type(error).__name__)
            if self._keys:
                self._fetched_at -= FRESH_SECONDS - PAUSE_SECONDS  # tried again soon
            return
        self._keys = {key.key_id: key for key in keys if key.algorithm_name in ALGORITHMS}
        self._verified.clear()  # a key may have been withdrawn

    def _load(self) -> list[Any]:
        issuer = self._settings.issuer
        document = _get(f"{issuer.rstrip('/')}/.well-known/openid-configuration", issuer)
        if document["issuer"] != issuer:
            raise ValueError(document["issuer"])
        return list(self._jwt.PyJWKSet.from_dict(_get(document["jwks_uri"], issuer)).keys)


def _get(url: str, issuer: str) -> dict[str, Any]:
    """Fetch a JSON document, by the issuer's scheme alone: no file of this machine, and nothing unencrypted."""
    if urlsplit(url).scheme != urlsplit(issuer).scheme:
        raise ValueError(url)
    with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:
        return msgspec.json.decode(answer.read(MAX_DOCUMENT), type=dict[str, Any])
