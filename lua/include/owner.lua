-- If the field `store` is neither the id of the caller's store nor 24 hexadecimal digits, it is not the id of any store. Then
-- no issuer has written it, and the hash is corrupt.
if store and store ~= store_id and (#store ~= 24 or string.find(store, '[^0-9a-f]')) then store, top = false, false end
