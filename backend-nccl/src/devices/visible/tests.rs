use super::*;

/// GPUs of one kind at places 0, 1, 2, … whose UUIDs begin with `GPU-a`, `GPU-b`, ….
fn equal(count: usize) -> Vec<Gpu> {
    let letters = ["a", "b", "c", "d"];
    letters[..count].iter().map(|letter| gpu(&format!("GPU-{letter}1234567-00"), "H200")).collect()
}

fn gpu(uuid: &str, name: &str) -> Gpu {
    Gpu { uuid: uuid.to_owned(), name: name.to_owned(), ..Gpu::default() }
}

/// GPU a whole, GPU b divided into two instances, GPU c whole.
fn divided() -> Vec<Gpu> {
    let instance = |uuid: &str, gpu_instance| Gpu {
        mig: Mig::Instance { gpu_instance, compute_instance: 0 },
        ..gpu(uuid, "H200 MIG 1g")
    };
    let b = Gpu { mig: Mig::Divided, ..gpu("GPU-b1", "H200") };
    vec![gpu("GPU-a1", "H200"), b, instance("MIG-x1", 7), instance("MIG-y1", 8), gpu("GPU-c1", "H200")]
}

fn places(value: Option<&str>, gpus: &[Gpu], order: DeviceOrder) -> (Vec<usize>, Option<String>) {
    match VisibleDevices::parse(value).resolve(gpus, order) {
        Ordinals::Known { places, stop } => (places, stop.map(|stop| stop.entry)),
        Ordinals::Unknown { reason } => panic!("{value:?} is unknown: {reason}"),
    }
}

#[test]
fn each_form_of_the_variable_shows_the_gpus_that_the_programming_guide_says() {
    let all = equal(4);
    let cases: [(Option<&str>, &[usize], Option<&str>); 21] = [
        (None, &[0, 1, 2, 3], None),
        (Some(""), &[], None),
        (Some("  "), &[], None),
        (Some("-1"), &[], None),
        (Some("NoDevFiles"), &[], Some("NoDevFiles")),
        (Some("2,1"), &[2, 1], None),
        (Some(" 3 , 0 "), &[3, 0], None),
        // The guide's own example.
        (Some("0,2,-1,1"), &[0, 2], Some("-1")),
        (Some("1,9,0"), &[1], Some("9")),
        (Some("7"), &[], Some("7")),
        (Some("1,,2"), &[1], Some("")),
        (Some("0,1,0"), &[], Some("0")),
        (Some("1gpu2,2ampere"), &[1, 2], None),
        (Some("GPU-c1234567-00"), &[2], None),
        (Some("GPU-d,GPU-a12"), &[3, 0], None),
        (Some("GPU-b,GPU-zz,GPU-a"), &[1], Some("GPU-zz")),
        (Some("GPU-,GPU-a"), &[], Some("GPU-")),
        (Some("GPU-a,GPU-a1"), &[], Some("GPU-a1")),
        (Some("GPU-c,1"), &[2], Some("1")),
        (Some("1,GPU-c"), &[1], Some("GPU-c")),
        (Some("MIG-x1"), &[], Some("MIG-x1")),
    ];
    for (value, expected, stop) in cases {
        let found = places(value, &all, DeviceOrder::PciBusId);
        assert_eq!(found, (expected.to_vec(), stop.map(str::to_owned)), "{value:?}");
    }
}

#[test]
fn a_mig_instance_is_named_by_either_form_and_is_alone() {
    let machine = divided();
    let cases: [(&str, &[usize], Option<&str>); 8] = [
        ("MIG-y1", &[3], None),
        ("MIG-GPU-b1/8/0", &[3], None),
        ("MIG-GPU-b/7/0", &[2], None),
        ("MIG-GPU-b1/9/0", &[], Some("MIG-GPU-b1/9/0")),
        ("MIG-GPU-a1/7/0", &[], Some("MIG-GPU-a1/7/0")),
        ("MIG-y1,MIG-x1", &[3], Some("MIG-x1")),
        // A divided GPU is its first instance.
        ("GPU-b1", &[2], None),
        ("GPU-a1,GPU-c1", &[0, 4], None),
    ];
    for (value, expected, stop) in cases {
        let found = places(Some(value), &machine, DeviceOrder::FastestFirst);
        assert_eq!(found, (expected.to_vec(), stop.map(str::to_owned)), "{value}");
    }
    // Numbers count GPUs, not instances.
    assert_eq!(places(Some("2"), &machine, DeviceOrder::PciBusId), (vec![4], None));
    assert_eq!(places(Some("2,1"), &machine, DeviceOrder::PciBusId).0, [2]);
    let unset = VisibleDevices::parse(None).resolve(&machine, DeviceOrder::PciBusId);
    assert!(matches!(unset, Ordinals::Unknown { .. }), "{unset:?}");
}

#[test]
fn numbers_among_different_gpus_are_known_in_the_order_of_the_bus_only() {
    let mixed = [gpu("GPU-a", "GT 1030"), gpu("GPU-b", "H200")];
    let resolve = |value, order| VisibleDevices::parse(value).resolve(&mixed, order);
    for value in [None, Some("1")] {
        assert!(matches!(resolve(value, DeviceOrder::FastestFirst), Ordinals::Unknown { .. }), "{value:?}");
    }
    assert_eq!(places(None, &mixed, DeviceOrder::PciBusId).0, [0, 1]);
    assert_eq!(places(Some("1"), &mixed, DeviceOrder::PciBusId).0, [1]);
    // UUIDs and the empty list do not depend on it.
    assert_eq!(places(Some("GPU-b,GPU-a"), &mixed, DeviceOrder::FastestFirst).0, [1, 0]);
    assert_eq!(places(Some(""), &mixed, DeviceOrder::FastestFirst).0, [0; 0]);
}

#[test]
fn equal_gpus_are_in_the_order_of_the_bus_in_both_orders() {
    for order in [DeviceOrder::FastestFirst, DeviceOrder::PciBusId] {
        assert_eq!(places(Some("3,1"), &equal(4), order).0, [3, 1]);
    }
}

#[test]
fn the_order_is_read_as_cuda_does() {
    assert_eq!(DeviceOrder::parse(None), DeviceOrder::FastestFirst);
    assert_eq!(DeviceOrder::parse(Some("PCI_BUS_ID")), DeviceOrder::PciBusId);
    assert_eq!(DeviceOrder::parse(Some("FASTEST_FIRST")), DeviceOrder::FastestFirst);
    assert_eq!(DeviceOrder::parse(Some("pci")), DeviceOrder::FastestFirst);
}

#[test]
fn the_drivers_uuids_place_each_ordinal_whatever_the_order() {
    let machine = divided();
    let uuids = ["GPU-C1", "GPU-y1", "GPU-q1"].map(str::to_owned);
    assert_eq!(places_by_uuid(&uuids, &machine), [Some(4), Some(3), None]);
}
