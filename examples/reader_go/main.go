// Command reader reads a tidelog store and prints JSON lines. It follows docs/formats.md and uses no code of tidelog.
//
//	reader -store DIR -topic flights -partition 1                     every record from log start on
//	reader -store DIR -topic flights -partition 1 -offset 40 -committed
//	reader -store DIR -topic flights -partition 1 -commit 9           the state right after that commit
//	reader -store DIR -topic flights -partition 1 -time 1700000000000 the first offset at or after this time
//	reader -store DIR -topic flights -partition 1 -describe           segments and the content of their sidecars
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	directory := flag.String("store", "", "a directory store, or a copy of a bucket's prefix")
	cluster := flag.String("cluster", "", "the cluster's id; optional if the store has only one cluster")
	topic := flag.String("topic", "", "the topic's name")
	topicID := flag.String("topic-id", "", "one of the topic's ids (default: the live one)")
	number := flag.Int("partition", 0, "the partition")
	offset := flag.Int64("offset", -1, "where to begin (default: log start)")
	commit := flag.Int64("commit", -1, "read the partition as it was right after this commit")
	at := flag.Int64("time", -1, "print the first offset at or after this time, in ms")
	committed := flag.Bool("committed", false, "omit records of aborted transactions")
	describe := flag.Bool("describe", false, "print segments and sidecars")
	flag.Parse()
	s := store(*directory)
	if *cluster == "" {
		var err error
		if *cluster, err = onlyCluster(s); err != nil {
			return err
		}
	}
	p, err := open(s, *cluster, *topic, *topicID, *number)
	if err != nil {
		return err
	}
	if *commit >= 0 {
		if err := p.asOf(*commit); err != nil {
			return err
		}
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	lines := json.NewEncoder(out)
	switch {
	case *describe:
		return p.describe()
	case *at >= 0:
		found, err := p.firstAt(*at)
		if err != nil {
			return err
		}
		return lines.Encode(map[string]*int64{"offset": found})
	}
	if *offset < 0 {
		*offset = p.manifest.LogStart
	}
	return p.read(*offset, *committed, func(item record) error { return lines.Encode(item) })
}

func onlyCluster(s store) (string, error) {
	var found []string
	for _, name := range s.names("") {
		key := name + "/cluster.json"
		data, err := s.get(key)
		if err != nil {
			continue
		}
		var file struct {
			ClusterID string `json:"cluster_id"`
		}
		if err := decode(data, key, &file); err != nil {
			return "", err
		}
		if file.ClusterID != name {
			return "", fmt.Errorf("%s belongs to cluster %s", key, file.ClusterID)
		}
		found = append(found, name)
	}
	if len(found) != 1 {
		return "", fmt.Errorf("the store has %d clusters; name one with -cluster", len(found))
	}
	return found[0], nil
}
