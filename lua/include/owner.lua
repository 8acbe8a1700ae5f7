-- If `store` is not the id of the caller's store and not 24 hexadecimal digits, `store` cannot be the id of another
-- store either: no issuer has written it, and the hash is corrupt.
if store and store ~= store_id and (#store ~= 24 or string.find(store, '[^0-9a-f]')) then store, top = false, false end
