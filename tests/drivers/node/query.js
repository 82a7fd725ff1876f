// Runs statements with the Node driver, one after the other on one connection.
//
// stdin:  {"connection": {...}, "statements": [{"sqlText": "…", "binds": […]}, …]}
// stdout: a JSON array with an object for each statement: {"columns", "rows", "changed"}
//         or {"error": {"code", "sqlState", "message"}}
//
// JSON has fewer types than JavaScript, so each value of a row is written as [its type, the value]; a Date as
// ["Date", its instant, its text in the session's format].
'use strict';

const snowflake = require('snowflake-sdk');

function shown(value) {
  if (value === null) return ['null', null];
  if (value instanceof Date) return ['Date', new Date(value.getTime()).toISOString(), value.toJSON()];
  if (Buffer.isBuffer(value)) return ['Buffer', value.toString('hex')];
  if (Array.isArray(value)) return ['array', value];
  return [typeof value, value];
}

function shownRow(row) {
  return Object.fromEntries(Object.entries(row).map(([name, value]) => [name, shown(value)]));
}

function failure({ code, sqlState, message }) {
  return { error: { code, sqlState, message } };
}

function execute(connection, statement) {
  return new Promise((resolve, reject) => {
    connection.execute({
      ...statement,
      complete(error, done, rows) {
        if (error) {
          resolve(failure(error));
          return;
        }
        try {
          const columns = done.getColumns().map((column) => [column.getName(), column.getType()]);
          resolve({ columns, rows: rows.map(shownRow), changed: done.getNumUpdatedRows() });
        } catch (unexpected) {
          reject(unexpected);
        }
      },
    });
  });
}

async function main() {
  let text = '';
  for await (const piece of process.stdin) text += piece;
  const asked = JSON.parse(text);
  snowflake.configure({ logLevel: 'OFF', additionalLogToConsole: false });
  const connection = snowflake.createConnection(asked.connection);
  await new Promise((resolve, reject) => connection.connect((error) => (error ? reject(error) : resolve())));
  const answers = [];
  for (const statement of asked.statements) answers.push(await execute(connection, statement));
  await new Promise((resolve) => connection.destroy(resolve));
  process.stdout.write(JSON.stringify(answers));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
