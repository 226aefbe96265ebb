package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

const headerBytes = 61

// batch is a whole record batch, magic 2.
type batch []byte

func (b batch) base() int64         { return int64(order.Uint64(b)) }
func (b batch) size() int64         { return int64(order.Uint32(b[8:])) + 12 }
func (b batch) epoch() int32        { return int32(order.Uint32(b[12:])) }
func (b batch) attributes() uint16  { return order.Uint16(b[21:]) }
func (b batch) next() int64         { return b.base() + int64(order.Uint32(b[23:])) + 1 }
func (b batch) firstTime() int64    { return int64(order.Uint64(b[27:])) }
func (b batch) maxTime() int64      { return int64(order.Uint64(b[35:])) }
func (b batch) producer() int64     { return int64(order.Uint64(b[43:])) }
func (b batch) count() int          { return int(order.Uint32(b[57:])) }
func (b batch) appendTime() bool    { return b.attributes()&8 != 0 }
func (b batch) transactional() bool { return b.attributes()&16 != 0 }
func (b batch) control() bool       { return b.attributes()&32 != 0 }

type recordHeader struct {
	Name  string  `json:"name"`
	Value *[]byte `json:"value"`
}

type record struct {
	Offset    int64          `json:"offset"`
	Timestamp int64          `json:"timestamp"`
	Epoch     int32          `json:"epoch"`
	Key       *[]byte        `json:"key"`
	Value     *[]byte        `json:"value"`
	Headers   []recordHeader `json:"headers"`
}

// split cuts bytes into whole batches and checks the CRC of each.
func split(data []byte) ([]batch, error) {
	var found []batch
	for len(data) > 0 {
		if len(data) < headerBytes || batch(data).size() > int64(len(data)) || data[16] != 2 {
			return nil, fmt.Errorf("no whole batch begins %d bytes before the end", len(data))
		}
		one := batch(data[:batch(data).size()])
		if crc(one[21:]) != order.Uint32(one[17:]) {
			return nil, fmt.Errorf("the batch at offset %d is damaged", one.base())
		}
		found = append(found, one)
		data = data[len(one):]
	}
	return found, nil
}

func (b batch) payload() ([]byte, error) {
	packed := b[headerBytes:]
	switch b.attributes() & 7 {
	case 0:
		return packed, nil
	case 1:
		unpacker, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, err
		}
		return io.ReadAll(unpacker)
	case 2:
		return unsnappy(packed)
	case 3:
		return io.ReadAll(lz4.NewReader(bytes.NewReader(packed)))
	case 4:
		unpacker, err := zstd.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, err
		}
		defer unpacker.Close()
		return io.ReadAll(unpacker)
	}
	return nil, fmt.Errorf("codec %d does not exist", b.attributes()&7)
}

// unsnappy unpacks one raw block, or a stream of blocks in the format of the Java library.
func unsnappy(packed []byte) ([]byte, error) {
	if !bytes.HasPrefix(packed, []byte("\x82SNAPPY\x00")) {
		return snappy.Decode(nil, packed)
	}
	var whole []byte
	for rest := packed[16:]; len(rest) >= 4; {
		size := int(order.Uint32(rest))
		if size > len(rest)-4 {
			return nil, fmt.Errorf("a snappy block is truncated")
		}
		block, err := snappy.Decode(nil, rest[4:4+size])
		if err != nil {
			return nil, err
		}
		whole, rest = append(whole, block...), rest[4+size:]
	}
	return whole, nil
}

// fields reads varints, and byte strings that follow their length as a varint.
type fields struct {
	data []byte
	err  error
}

func (f *fields) number() int64 {
	value, n := binary.Varint(f.data)
	if n <= 0 {
		f.err = fmt.Errorf("a record that is cut short")
		f.data = nil
		return 0
	}
	f.data = f.data[n:]
	return value
}

func (f *fields) take(size int64) []byte {
	if size < 0 || size > int64(len(f.data)) {
		f.err = fmt.Errorf("a record that is cut short")
		return nil
	}
	taken := f.data[:size]
	f.data = f.data[size:]
	return taken
}

func (f *fields) optional() *[]byte {
	size := f.number()
	if size < 0 {
		return nil
	}
	taken := append([]byte{}, f.take(size)...)
	return &taken
}

func (b batch) records() ([]record, error) {
	payload, err := b.payload()
	if err != nil {
		return nil, fmt.Errorf("the batch at offset %d: %w", b.base(), err)
	}
	all := fields{data: payload}
	found := make([]record, 0, b.count())
	for range b.count() {
		one := fields{data: all.take(all.number())}
		one.take(1) // attributes: unused
		item := record{Timestamp: b.firstTime() + one.number(), Offset: b.base() + one.number(), Epoch: b.epoch()}
		if b.appendTime() {
			item.Timestamp = b.maxTime()
		}
		item.Key, item.Value = one.optional(), one.optional()
		item.Headers = []recordHeader{}
		for count := one.number(); count > 0 && one.err == nil; count-- {
			name := one.take(one.number())
			item.Headers = append(item.Headers, recordHeader{string(name), one.optional()})
		}
		if all.err != nil || one.err != nil || len(one.data) > 0 {
			return nil, fmt.Errorf("the batch at offset %d has a damaged record", b.base())
		}
		found = append(found, item)
	}
	return found, nil
}

// aborts tells whether a control batch aborts its transaction.
func (b batch) aborts() (bool, error) {
	found, err := b.records()
	if err != nil || len(found) != 1 || found[0].Key == nil || len(*found[0].Key) < 4 {
		return false, fmt.Errorf("the control batch at offset %d is damaged", b.base())
	}
	return order.Uint16((*found[0].Key)[2:]) == 0, nil
}
