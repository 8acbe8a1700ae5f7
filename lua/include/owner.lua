-- If `store` is not the caller's and does not have the form of an id (24 hexadecimal digits), no issuer has written it:
-- then it is no other store's id, and the hash is corrupt.
if store and store ~= store_id and (#store ~= 24 or string.find(store, '[^0-9a-f]')) then store, top = false, false end
