package main

import (
	"encoding/binary"
	"fmt"
)

const mib = 1 << 20

type indexRow struct {
	Offset, Position, MaxTimestamp int64
}

type aborted struct {
	Producer, First, Last, LastStable int64
}

type epochStart struct {
	Epoch int32
	Start int64
}

type producer struct {
	ID               int64
	Epoch            int16
	LastSequence     int32
	LastOffset       int64
	Delta            int32
	Timestamp        int64
	CoordinatorEpoch int32
	OpenFrom         int64
}

type sidecar struct {
	Index     []indexRow
	Checks    []uint32
	Aborted   []aborted
	Epochs    []epochStart
	Producers []producer
}

var order = binary.BigEndian

// readSidecar checks a whole sidecar's header, which must name this segment, and returns the positions of its sections.
func readSidecar(data []byte, of *remoteSegment) (map[string]span, error) {
	if len(data) < 48 || string(data[:8]) != "TIDELIDX" {
		return nil, fmt.Errorf("the object is not a sidecar")
	}
	if order.Uint16(data[10:]) > format {
		return nil, fmt.Errorf("the sidecar needs a newer reader")
	}
	count := int(order.Uint32(data[12:]))
	if 48+28*count > len(data) {
		return nil, fmt.Errorf("the sidecar is truncated")
	}
	table := data[48 : 48+28*count]
	if crc(append(append([]byte{}, data[:44]...), table...)) != order.Uint32(data[44:]) {
		return nil, fmt.Errorf("the sidecar's header is damaged")
	}
	base, end := int64(order.Uint64(data[16:])), int64(order.Uint64(data[24:]))
	length, sum := int64(order.Uint64(data[32:])), order.Uint32(data[40:])
	if of != nil && (base != of.Base || end != of.End || length != of.Length || sum != of.CRC) {
		return nil, fmt.Errorf("the sidecar belongs to another segment")
	}
	sections := map[string]span{}
	for ; len(table) > 0; table = table[28:] {
		name := string(table[:8])
		for len(name) > 0 && name[len(name)-1] == 0 {
			name = name[:len(name)-1]
		}
		sections[name] = span{int64(order.Uint64(table[8:])), int64(order.Uint64(table[16:])), int64(order.Uint32(table[24:]))}
	}
	return sections, nil
}

// parse reads the sections that data contains as a whole. The first byte of data is byte `at` of the sidecar.
func parse(data []byte, at int64, sections map[string]span, base int64) (*sidecar, error) {
	found := &sidecar{}
	for name, where := range sections {
		from := where[0] - at
		if from < 0 || from+where[1] > int64(len(data)) {
			continue
		}
		content := data[from : from+where[1]]
		if crc(content) != uint32(where[2]) {
			return nil, fmt.Errorf("section %s is damaged", name)
		}
		switch name {
		case "index":
			for row := content; len(row) >= 16; row = row[16:] {
				found.Index = append(found.Index, indexRow{base + int64(order.Uint32(row)), int64(order.Uint32(row[4:])), int64(order.Uint64(row[8:]))})
			}
		case "checks":
			for row := content; len(row) >= 4; row = row[4:] {
				found.Checks = append(found.Checks, order.Uint32(row))
			}
		case "aborted":
			for row := content; len(row) >= 34; row = row[34:] {
				found.Aborted = append(found.Aborted, aborted{int64(order.Uint64(row[2:])), int64(order.Uint64(row[10:])), int64(order.Uint64(row[18:])), int64(order.Uint64(row[26:]))})
			}
		case "epochs":
			for row := content; len(row) >= 12; row = row[12:] {
				found.Epochs = append(found.Epochs, epochStart{int32(order.Uint32(row)), int64(order.Uint64(row[4:]))})
			}
		case "producer":
			if err := found.parseProducers(content); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

func (s *sidecar) parseProducers(content []byte) error {
	if len(content) < 10 || order.Uint16(content) != 1 || order.Uint32(content[2:]) != crc(content[6:]) {
		return fmt.Errorf("the snapshot of producers is damaged")
	}
	row := content[10:]
	if len(row) != 46*int(order.Uint32(content[6:])) {
		return fmt.Errorf("the snapshot of producers does not have as many rows as it says")
	}
	for ; len(row) > 0; row = row[46:] {
		s.Producers = append(s.Producers, producer{
			int64(order.Uint64(row)), int16(order.Uint16(row[8:])), int32(order.Uint32(row[10:])), int64(order.Uint64(row[14:])),
			int32(order.Uint32(row[22:])), int64(order.Uint64(row[26:])), int32(order.Uint32(row[34:])), int64(order.Uint64(row[38:])),
		})
	}
	return nil
}
