// The JSON documents of a bucket, as docs/formats.md describes them.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
)

// The newest format that this reader understands.
const format = 2

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crc(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

type topicFile struct {
	ClusterID  string            `json:"cluster_id"`
	Topic      string            `json:"topic"`
	TopicID    string            `json:"topic_id"`
	State      string            `json:"state"`
	Partitions int               `json:"partitions"`
	Configs    map[string]string `json:"configs"`
	Earlier    []string          `json:"earlier"`
}

// span is [position, length, CRC-32C].
type span [3]int64

type stamp [2]int64

type remoteSegment struct {
	Base               int64           `json:"base"`
	End                int64           `json:"end"`
	Key                string          `json:"key"`
	Position           int64           `json:"position"`
	Length             int64           `json:"length"`
	Sidecar            string          `json:"sidecar"`
	Sections           map[string]span `json:"sections"`
	MinTimestamp       int64           `json:"min_timestamp"`
	MaxTimestamp       int64           `json:"max_timestamp"`
	MaxTimestampOffset int64           `json:"max_timestamp_offset"`
	Records            int64           `json:"records"`
	Bytes              int64           `json:"bytes"`
	CRC                uint32          `json:"crc32c"`
	Added              stamp           `json:"added"`
	GapFrom            *int64          `json:"gap_from"`
	Removed            stamp           `json:"removed"`
}

// isSegment tells whether a removed item is a remote segment; otherwise it is a single key.
func (e *remoteSegment) isSegment() bool { return e.Sidecar != "" }

type pageRef struct {
	Kind         string `json:"kind"`
	Key          string `json:"key"`
	Base         int64  `json:"base"`
	End          int64  `json:"end"`
	Count        int    `json:"count"`
	Length       int    `json:"length"`
	CRC          uint32 `json:"crc32c"`
	MaxTimestamp int64  `json:"max_timestamp"`
	LastCommit   int64  `json:"last_commit"`
}

type pin struct {
	Name     string `json:"name"`
	Commit   int64  `json:"commit"`
	LogStart int64  `json:"log_start"`
	End      int64  `json:"end"`
}

type newestSidecar struct {
	Key      string          `json:"key"`
	Sections map[string]span `json:"sections"`
	Alone    bool            `json:"alone"`
}

type manifest struct {
	ClusterID       string          `json:"cluster_id"`
	Topic           string          `json:"topic"`
	TopicID         string          `json:"topic_id"`
	Partition       int             `json:"partition"`
	State           string          `json:"state"`
	Line            string          `json:"line"`
	Commit          int64           `json:"commit"`
	LeaderEpoch     int32           `json:"leader_epoch"`
	LogStart        int64           `json:"log_start"`
	End             int64           `json:"end"`
	LastRecordEpoch int32           `json:"last_record_epoch"`
	Swept           int64           `json:"swept"`
	Sidecar         *newestSidecar  `json:"sidecar"`
	Pins            []pin           `json:"pins"`
	Pages           []pageRef       `json:"pages"`
	Segments        []remoteSegment `json:"segments"`
	Removed         []remoteSegment `json:"removed"`
}

type manifestPage struct {
	TopicID   string          `json:"topic_id"`
	Partition int             `json:"partition"`
	Kind      string          `json:"kind"`
	Segments  []remoteSegment `json:"segments"`
	Removed   []remoteSegment `json:"removed"`
}

// decode checks a document's checksum and version, and then parses the document.
func decode(data []byte, where string, into any) error {
	const mark = ",\n\"checksum\": "
	at := bytes.LastIndex(data, []byte(mark))
	if at < 0 || !bytes.HasSuffix(data, []byte("\n}\n")) {
		return fmt.Errorf("%s does not end with its checksum", where)
	}
	said, err := strconv.ParseUint(strings.TrimSuffix(string(data[at+len(mark):]), "\n}\n"), 10, 32)
	if err != nil || uint32(said) != crc(data[:at]) {
		return fmt.Errorf("the checksum of %s does not match", where)
	}
	var version struct {
		LeastReader int `json:"least_reader"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if version.LeastReader > format {
		return fmt.Errorf("%s needs a reader of format %d", where, version.LeastReader)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

func decodePage(data []byte, ref pageRef) (manifestPage, error) {
	var found manifestPage
	if len(data) != ref.Length || crc(data) != ref.CRC {
		return found, fmt.Errorf("page %s does not match its length and checksum in the manifest", ref.Key)
	}
	unpacker, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return found, err
	}
	plain, err := io.ReadAll(io.LimitReader(unpacker, 64<<20))
	if err != nil {
		return found, err
	}
	if err := decode(plain, ref.Key, &found); err != nil {
		return found, err
	}
	if found.Kind != ref.Kind || len(found.Segments)+len(found.Removed) != ref.Count {
		return found, fmt.Errorf("page %s does not contain what its manifest says", ref.Key)
	}
	return found, nil
}
