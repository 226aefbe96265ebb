"""The partition of a record: Java's murmur2 with a key, sticky without."""

from __future__ import annotations

from itertools import pairwise

import pytest

from grpc_api.partitioning.murmur2 import murmur2
from grpc_api.partitioning.partitioner import StickyPartitioner, partition_of_key
from tests.support.clock import SeededRng

#: (key in hexadecimal, Utils.murmur2, partition of 7), printed by kafka-clients 4.2.1 under Java 17: every length up to 40,
#: bytes above 127, and the keys of Kafka's own tests.
JAVA = [
    ("", 275646681, 2),
    ("61", -1563381124, 5),
    ("6162", 316155434, 0),
    ("616263", 479470107, 4),
    ("61626364", -1323649548, 5),
    ("3231", -973932308, 3),
    ("666f6f626172", -790332482, 0),
    ("612d6c6974746c652d6269742d6c6f6e672d737472696e67", -985981536, 1),
    ("612d6c6974746c652d6269742d6c6f6e6765722d737472696e67", -1486304829, 0),
    ("6c6b6a683233346c68396669756839307932336f697568736166756a6861646f66323239706872396831396838396838", -58897971, 3),
    ("6b6579", -1079937367, 4),
    ("5363686cc3bc7373656c", -483618124, 6),
    ("27", 1753302888, 1),
    ("214d", 1499764327, 5),
    ("f1bcb7", 840982854, 5),
    ("9e0e69bf", 487645789, 1),
    ("46acc98d58", 1074388344, 1),
    ("2cdc84191236", -1799326881, 0),
    ("2679d049aabedb", -1333982386, 0),
    ("22a0fe6415d09171", 1154189198, 1),
    ("54a10196b8d94ae692", -111951517, 3),
    ("f266048ff4551de60ac6", 1901102419, 6),
    ("c25a5b24e5c700e7f521bd", 40835968, 5),
    ("2f847c71d734b467dd593139", 1921479935, 4),
    ("86f3ea5e282ab14766aa13db82", -1974481907, 3),
    ("c7c89a7d06248e344ac8ade57813", -209912117, 0),
    ("c3f3c548d25ac8f8b70de53ce5216d", 1121050583, 2),
    ("9e2962d0ac6534878fb0b7e7309afe10", 1854988699, 4),
    ("0ad15d043629a0c8f452cccf0c06849aff", -1937414821, 3),
    ("32899c401dfe1b1cb4ea9d29abf8133c6910", 1890820663, 4),
    ("6d76c0f2778d8abaa6c50335ceb2e5bcc13c4b", 219171132, 5),
    ("77fcd24669b56349e30d91e109d17a74ad5fb948", 1252237149, 2),
    ("001d3db55ccb430d190a69f32fd64c2efee96c3601", -1872603877, 5),
    ("c196a690b5638700b25b7685d8f06dc81afc645459b2", -948680304, 4),
    ("979b2b8f82d0d8f822a511db9dacf8f410e962f9e5763a", -371850276, 2),
    ("8bd7d9cab233c194544c265d0b9967b1cfa1b839f7752e09", 261807220, 3),
    ("a604370549778a5388162dd7bfa95517ca259d77a31faf98fd", -1325360561, 2),
    ("57304ae7b3188fdf6ff2e621ffbea8db46655d0e80f383c9374d", -759987044, 4),
    ("f6cbee24d69df526a9dcfef8e37f71f83689892dd31c57f575edd0", 1049990158, 0),
    ("177048c2969f942592fe216daf477248da8e0a7043563b223461f435", -354535004, 4),
    ("9852ea497704091fd11adbd12c4dd02e1f53cae6a736cfd692f63df2fd", -1166135653, 5),
    ("4fd33cbdef0c947b2b857612488bf468088d5f174797502d64406c400542", 22490587, 0),
    ("f1cb4414fcfa47e03e35c033101ec60fad7a5426d6c926a24a769f71e73bd8", -1432808097, 2),
    ("4c4f94ec7d279e8838df9978b23a0f3003cbe1f81861c105aefde8c583d6e675", 1186247278, 6),
    ("1f01a01e36dbb2895a33fc0fdd624dbd375906c7f179974a4a65dc517ae90a63a1", -540257416, 3),
    ("50e795817acc4ab948f1b4cf26ff4439ed5b19c8aebba38bb53169e1f922f812d7cd", -709549741, 4),
    ("826ec70c2cb669a5e4375a10b9a905a1be35d81cde355913c3bd35d13b7a77b6ef94be", -1838119413, 5),
    ("c5a37e1236921390a72104603225590fe53a638291413b13d0890cff5251472dd48a8e2b", 1462825951, 6),
    ("17f3b2212feea797153f9b387c4858076864d5054e245a91d279b0a920e7ffde37a8870568", 417145899, 2),
    ("47322afc9c3db6c63f9c7fc25164e2aea927f5b7f0bb45e1774aa776931ef8fffb8d561bfef4", -1198011996, 3),
    ("84a9b8b8da4f6268a385d28f9280afc86e70f05691a88a1039f8494da37941f196f16d48cc60d6", 496317435, 5),
    ("a2ee58c4d81c9a75e730c154686408e75db4fbc74d4b205e4ba987eb709d57f01c5c12b896f513ec", 1874867454, 5),
    ("ff", -311467685, 5),
    ("ffff", -1642832928, 0),
    ("ffffff", 1548199422, 0),
    ("ffffffff", 644171429, 6),
    ("ffffffffff", -363838622, 2),
    ("ffffffffffff", 28450676, 2),
    ("ffffffffffffff", -71293549, 4),
    ("ffffffffffffffff", 185950397, 3),
    ("80", 857690492, 1),
    ("8080", -1145267538, 0),
    ("808080", -1134684817, 2),
    ("80808080", -95523324, 1),
    ("8080808080", -1525148316, 3),
    ("808080808080", 338506600, 5),
    ("80808080808080", -1845943597, 1),
    ("8080808080808080", 343739557, 0),
    ("00", 375494588, 0),
    ("0000", 595382058, 5),
    ("000000", 1013532917, 5),
    ("00000000", 850957120, 6),
    ("0000000000", 263274959, 3),
    ("000000000000", 254929376, 2),
    ("00000000000000", 1067877175, 1),
    ("0000000000000000", -522759933, 6),
]


@pytest.mark.parametrize(("key", "murmur", "partition"), JAVA)
def test_murmur2_and_the_partition_are_those_of_java(key: str, murmur: int, partition: int) -> None:
    assert murmur2(bytes.fromhex(key)) == murmur
    assert partition_of_key(bytes.fromhex(key), 7) == partition


def test_without_a_key_a_batch_is_filled_before_the_partition_changes() -> None:
    sticky = StickyPartitioner(1000, SeededRng(1))

    chosen = [sticky.partition(100, 5) for _ in range(500)]

    runs = [chosen[at : at + 10] for at in range(0, 500, 10)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(before[0] != after[0] for before, after in pairwise(runs))
    assert set(chosen) == set(range(5))


def test_every_other_partition_is_equally_likely() -> None:
    sticky = StickyPartitioner(1, SeededRng(2))

    chosen = [sticky.partition(1, 4) for _ in range(8000)]

    assert all(1800 < chosen.count(partition) < 2200 for partition in range(4))


def test_one_partition_needs_no_choice_and_fewer_partitions_need_a_new_one() -> None:
    sticky = StickyPartitioner(1 << 20, SeededRng(3))
    assert {sticky.partition(10, 1) for _ in range(5)} == {0}
    wide = StickyPartitioner(1 << 20, SeededRng(4))
    assert wide.partition(10, 50) > 1
    assert wide.partition(10, 2) in (0, 1)
