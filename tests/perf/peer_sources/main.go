// A loop over gosnowflake: ADDRESS DATABASE CONNECTIONS WARM_S SECONDS, as tests/perf/_peers.py describes.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sf "github.com/snowflakedb/gosnowflake"
)

const (
	pointSelect = "SELECT V FROM KV WHERE ID = ?"
	keys        = 50
)

var recording, stopping atomic.Bool

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func open(address, database string, connections int) *sql.DB {
	host, port, _ := strings.Cut(address, ":")
	tag, off := "peer", "false"
	dsn := must(sf.DSN(&sf.Config{
		Account: "embedded", User: "peer", Password: "any", Host: host, Port: must(strconv.Atoi(port)), Protocol: "http",
		Database: database, Schema: "PUBLIC",
		Params: map[string]*string{"QUERY_TAG": &tag, "CLIENT_TELEMETRY_ENABLED": &off},
	}))
	db := must(sql.Open("snowflake", dsn))
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

func loop(connection *sql.Conn, key int, times *[]time.Duration) {
	ctx := context.Background()
	var value string
	for !stopping.Load() {
		key = (key*7919+13)%keys + 1
		kept, begun := recording.Load(), time.Now()
		rows := must(connection.QueryContext(ctx, pointSelect, key))
		for rows.Next() {
			if err := rows.Scan(&value); err != nil {
				panic(err)
			}
		}
		if err := rows.Err(); err != nil {
			panic(err)
		}
		rows.Close()
		if kept {
			*times = append(*times, time.Since(begun))
		}
	}
}

func main() {
	sf.GetLogger().SetOutput(io.Discard)
	connections := must(strconv.Atoi(os.Args[3]))
	warm := time.Duration(must(strconv.ParseFloat(os.Args[4], 64)) * float64(time.Second))
	seconds := time.Duration(must(strconv.ParseFloat(os.Args[5], 64)) * float64(time.Second))
	db := open(os.Args[1], os.Args[2], connections)
	times := make([][]time.Duration, connections)
	var loops sync.WaitGroup
	for number := range connections {
		connection := must(db.Conn(context.Background()))
		loops.Go(func() { loop(connection, number, &times[number]) })
	}
	time.Sleep(warm)
	recording.Store(seconds > 0)
	fmt.Println("ready")
	if seconds > 0 {
		time.Sleep(seconds)
	} else {
		io.Copy(io.Discard, os.Stdin)
	}
	stopping.Store(true)
	loops.Wait()
	all := slices.Concat(times...)
	slices.Sort(all)
	if len(all) > 0 {
		at := func(part float64) float64 { return float64(all[int(part*float64(len(all)-1))]) / 1e6 }
		fmt.Printf("{\"statements\": %d, \"p50_ms\": %f, \"p99_ms\": %f}\n", len(all), at(0.5), at(0.99))
	}
}
