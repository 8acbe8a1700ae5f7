-- The owner of the hash. A `store` that is neither the caller's nor has the form of an id, 24 hexadecimal digits, was
-- written by no issuer: it names no other store, and the hash is corrupt.
if store and store ~= store_id and (#store ~= 24 or string.find(store, '[^0-9a-f]')) then store, top = false, false end
