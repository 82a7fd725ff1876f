// Prints what the driver makes of the server at HOST:PORT: a line "name, tab, value" for each check.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	sf "github.com/snowflakedb/gosnowflake"
)

func check(name string, run func() (any, error)) {
	value, err := run()
	var failure *sf.SnowflakeError
	switch {
	case errors.As(err, &failure):
		value = fmt.Sprintf("error %d %s", failure.Number, failure.SQLState)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		value = err.Error()
	case err != nil:
		value = fmt.Sprintf("unexpected %v", err)
	}
	fmt.Printf("%s\t%s\n", name, strings.ReplaceAll(fmt.Sprint(value), "\n", "\\n"))
}

func rows(ctx context.Context, db *sql.DB, text string, binds ...any) (any, error) {
	found, err := db.QueryContext(ctx, text, binds...)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	names, _ := found.Columns()
	var all []string
	for found.Next() {
		cells := make([]sql.NullString, len(names))
		into := make([]any, len(names))
		for place := range cells {
			into[place] = &cells[place]
		}
		if err := found.Scan(into...); err != nil {
			return nil, err
		}
		texts := make([]string, len(names))
		for place, cell := range cells {
			texts[place] = "NULL"
			if cell.Valid {
				texts[place] = cell.String
			}
		}
		all = append(all, strings.Join(texts, "|"))
	}
	return strings.Join(all, ";"), found.Err()
}

func changed(db *sql.DB, text string, binds ...any) (any, error) {
	result, err := db.Exec(text, binds...)
	if err != nil {
		return nil, err
	}
	return result.RowsAffected()
}

func open(address string, format string) (*sql.DB, error) {
	host, port, _ := strings.Cut(address, ":")
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	zone := "UTC"
	settings := sf.Config{
		Account: "embedded", User: "tester", Password: "any", Host: host, Port: number, Protocol: "http",
		Database: "GO", Schema: "PUBLIC", Warehouse: "BENCH_WH", Params: map[string]*string{"TIMEZONE": &zone},
	}
	if format != "" {
		settings.Params["GO_QUERY_RESULT_FORMAT"] = &format
	}
	dsn, err := sf.DSN(&settings)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("snowflake", dsn)
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

func main() {
	sf.GetLogger().SetOutput(io.Discard)
	db, err := open(os.Args[1], "")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	always := context.Background()
	read := func(name string, text string, binds ...any) {
		check(name, func() (any, error) { return rows(always, db, text, binds...) })
	}
	write := func(name string, text string, binds ...any) {
		check(name, func() (any, error) { return changed(db, text, binds...) })
	}
	read("context", "SELECT CURRENT_USER(), CURRENT_DATABASE(), CURRENT_SCHEMA(), CURRENT_WAREHOUSE()")
	write("ddl", "CREATE OR REPLACE HYBRID TABLE H (ID NUMBER PRIMARY KEY, V NUMBER)")
	write("insert", "INSERT INTO H VALUES (1, 10), (2, 20)")
	write("update", "UPDATE H SET V = V + 1")
	write("delete", "DELETE FROM H WHERE ID = 2")
	write("types", "CREATE OR REPLACE TABLE T (N NUMBER(38,0), P NUMBER(10,2), F FLOAT, S VARCHAR, B BOOLEAN, D DATE,"+
		" NTZ TIMESTAMP_NTZ, BI BINARY)")
	write("binds", "INSERT INTO T SELECT ?, ?, ?, ?, ?, ?::DATE, ?::TIMESTAMP_NTZ, ?", 42, "-1.25", 0.1,
		"it's ä日 \\ \"x\"", true, "2024-02-29", "2024-02-29 12:34:56.789", sf.DataTypeBinary, []byte{0, 1, 255})
	write("nulls", "INSERT INTO T (N, S) VALUES (?, ?)", nil, nil)
	read("values", "SELECT N, P, F, S, B, D, NTZ, TO_VARCHAR(BI) FROM T WHERE N IS NOT NULL")
	read("null values", "SELECT N, S FROM T WHERE N IS NULL")
	numbers, names := make([]int, 500), make([]string, 500)
	for place := range numbers {
		numbers[place], names[place] = place, fmt.Sprintf("name %d", place)
	}
	write("batch table", "CREATE OR REPLACE TABLE BATCHED (ID NUMBER, NAME VARCHAR)")
	write("batch", "INSERT INTO BATCHED VALUES (?, ?)", sf.Array(&numbers), sf.Array(&names))
	read("batched", "SELECT COUNT(*), SUM(ID), MAX(NAME) FROM BATCHED")
	check("rolled back", func() (any, error) {
		transaction, err := db.Begin()
		if err != nil {
			return nil, err
		}
		if _, err := transaction.Exec("UPDATE H SET V = 1000"); err != nil {
			return nil, err
		}
		if err := transaction.Rollback(); err != nil {
			return nil, err
		}
		return rows(always, db, "SELECT V FROM H")
	})
	check("committed", func() (any, error) {
		transaction, err := db.Begin()
		if err != nil {
			return nil, err
		}
		if _, err := transaction.Exec("UPDATE H SET V = 7"); err != nil {
			return nil, err
		}
		if err := transaction.Commit(); err != nil {
			return nil, err
		}
		return rows(always, db, "SELECT V FROM H")
	})
	read("missing table", "SELECT * FROM NOWHERE")
	read("syntax", "SELEC 1")
	read("division", "SELECT 1 / 0")
	write("duplicate key", "INSERT INTO H VALUES (1, 1)")
	check("large", func() (any, error) {
		found, err := db.Query("SELECT SEQ4(), RPAD('x', 100, 'y') FROM TABLE(GENERATOR(ROWCOUNT => 60000))")
		if err != nil {
			return nil, err
		}
		defer found.Close()
		count, sum := 0, 0
		for found.Next() {
			var number int
			var text string
			if err := found.Scan(&number, &text); err != nil {
				return nil, err
			}
			count, sum = count+1, sum+number+len(text)
		}
		return fmt.Sprint(count, " ", sum), found.Err()
	})
	check("timeout", func() (any, error) {
		brief, cancel := context.WithTimeout(always, time.Second)
		defer cancel()
		return rows(brief, db, "SELECT SYSTEM$WAIT(60)")
	})
	check("cancel", func() (any, error) {
		cancelled, cancel := context.WithCancel(always)
		time.AfterFunc(1500*time.Millisecond, cancel)
		return rows(cancelled, db, "SELECT SYSTEM$WAIT(60)")
	})
	read("still open", "SELECT 2")
	check("arrow", func() (any, error) {
		other, err := open(os.Args[1], "ARROW")
		if err != nil {
			return nil, err
		}
		defer other.Close()
		return rows(always, other, "SELECT 3")
	})
}
