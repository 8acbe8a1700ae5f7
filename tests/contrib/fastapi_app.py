"""An application as docs/guide/fastapi.md shows it, for uvicorn, gunicorn and TestClient."""

import os
from typing import Annotated, Any

from fastapi import FastAPI, Header
from pydantic import BaseModel
from sqlalchemy import BigInteger
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import issuer
from issuer.contrib.fastapi import Ids, error_reply, health, lifespan
from issuer.contrib.pydantic import Number
from issuer.contrib.sqlalchemy import next_number

app = FastAPI(lifespan=lifespan)
app.include_router(health)
app.add_exception_handler(issuer.IssuerError, error_reply)
app.add_exception_handler(StatementError, error_reply)


class Order(BaseModel):
    id: Number


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "rows"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, default=next_number("orders"))


@app.post("/orders")
async def create_order(ids: Ids, key: Annotated[str | None, Header(alias="Idempotency-Key")] = None) -> Order:
    return Order(id=await ids.next("orders", key=key))


@app.get("/orders/{number}")
async def get_order(number: Number) -> Order:
    return Order(id=number)


@app.post("/tags/{tag}")
async def draw(tag: str, ids: Ids, timeout: float = 5.0) -> Number:
    return await ids.next(tag, timeout=timeout)


@app.post("/rows")
async def create_row() -> Order:
    engine = create_async_engine("sqlite+aiosqlite://")
    try:
        async with AsyncSession(engine) as session:
            await (await session.connection()).run_sync(Base.metadata.create_all)
            session.add(row := Row())
            await session.flush()
            return Order(id=row.id)
    finally:
        await engine.dispose()


@app.get("/pid")
async def pid(ids: Ids) -> dict[str, Any]:
    return {"pid": os.getpid(), "numbers": [await ids.next("orders") for _ in range(20)]}
